// What the model says of an image: its class or none, the most probable classes, and which lesson the answer comes from.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { Bar } from "./controls.js";
import { shown } from "./model.js";
import { formatPercent, shortenList, t } from "./texts.js";

const FEW = 5; // classes: so many keep their places, so that live bars do not jump

// Return the answer as a screen reader says it.
export function describe(prediction) {
  if (prediction.error) return prediction.error;
  return prediction.unknown ? t("answer.unknown") : prediction.label;
}

export function Answer({ prediction, title }) {
  const { classes } = shown.use();
  const { label, score, top, unknown } = prediction;
  const order = new Map(classes.map((each, index) => [each.name, index]));
  const bars = classes.length > FEW ? top : [...top].sort((a, b) => order.get(String(a.label)) - order.get(String(b.label)));
  return html`
    <div class="answer ${unknown ? "unknown" : ""}" data-label=${unknown ? "" : label} data-score=${score}>
      <p class="label">${unknown ? t("answer.unknown") : label}</p>
      <p class="hint">${unknown ? t("answer.nearest", { name: label }) : t("answer.sure", { share: formatPercent(score) })}
        ${title && ` · ${title}`}</p>
      <ul class="shares">
        ${bars.map((each) => html`
          <li key=${each.label} class=${each.label === label ? "first" : ""}>
            <b>${each.label}</b><span>${formatPercent(each.score)}</span>
            <${Bar} share=${each.score} kind=${unknown ? "muted" : ""} /></li>`)}
      </ul>
      <${Lessons} weights=${prediction.task_weights} classes=${classes} />
    </div>`;
}

// Which prompts answered: a method with prompts has some from every lesson that brought new classes.
function Lessons({ weights, classes }) {
  if (!weights || weights.length < 2) return null;
  const strongest = weights.indexOf(Math.max(...weights));
  const lessons = [...new Set(classes.map((each) => each.lesson))].sort((a, b) => a - b);
  const own = classes.filter((each) => each.lesson === lessons[strongest]).map((each) => each.name);
  const values = { number: strongest + 1, share: formatPercent(weights[strongest]), names: shortenList(own) };
  return html`
    <div class="lessons">
      <p class="hint">${lessons.length === weights.length ? t("answer.lessonNamed", values) : t("answer.lesson", values)}</p>
      <span class="stack" aria-hidden="true">
        ${weights.map((weight, index) => html`
          <span key=${index} class=${index === strongest ? "first" : ""} style=${{ flexGrow: weight }}></span>`)}
      </span>
    </div>`;
}
