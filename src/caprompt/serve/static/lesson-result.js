// What the last lesson taught: how many of the images that were set aside are recognized, and what is mistaken for what.

import { html, useEffect, useRef } from "./vendor/htm-preact-3.1.1.module.js";
import { Bar, announce } from "./controls.js";
import { Icon } from "./icons.js";
import { dismiss, isRunning, work } from "./jobs.js";
import { makeAddress } from "./router.js";
import { formatDuration, formatPercent, shortenList, t } from "./texts.js";

const WEAK = 80; // percent, below which a class deserves more images

export function LessonResult({ name }) {
  const { job, images } = work.use();
  const heading = useRef(null);
  const done = job?.kind === "learn" && job.state === "done" && job.result;
  const running = useRef(false);
  useEffect(() => {
    if (done && running.current) {
      announce(headline(job.result));
      heading.current.focus();
    }
    running.current = isRunning(job);
  }, [job?.id, job?.state]);
  if (!done) return null;
  const { result } = job;
  const held = result.held_out;
  return html`
    <section class="card result" aria-labelledby="result-title">
      <div class="result-head">
        <div>
          <h2 id="result-title" ref=${heading} tabindex="-1">${headline(result)}</h2>
          <p class="hint">${t("result.detail", { count: result.images, time: formatDuration(job.seconds ?? 0) })}</p>
        </div>
        <div class="row">
          <a class="button primary" href=${makeAddress(name, "try")}><${Icon} name="try" />${t("result.try")}</a>
          <button type="button" class="quiet" onClick=${dismiss}>${t("result.close")}</button>
        </div>
      </div>
      ${held?.images > 0 ? html`<${HeldOut} held=${held} images=${images} />` : html`<p class="hint">${t("result.notChecked")}</p>`}
      ${(result.skipped ?? []).map((sentence) => html`<p class="hint" key=${sentence}>${sentence}</p>`)}
    </section>`;
}

function headline({ classes_added: added }) {
  if (!added.length) return t("result.more");
  return t("result.title", { names: shortenList(added) });
}

const countRight = ({ images, accuracy }) => Math.round((images * accuracy) / 100); // accuracies are in percent

const HeldOut = ({ held, images }) => html`
  <div class="held-out">
    <div class="figure">
      <p class="number">${formatPercent(held.accuracy / 100)}</p>
      <p>${t("result.accuracy", { right: countRight(held), count: held.images })}</p>
      <p class="hint">${t("result.accuracyHint")}</p>
    </div>
    <ul class="shares">
      ${held.classes.map((each) => html`
        <li key=${each.name}><b>${each.name}</b><span>${t("result.of", { right: countRight(each), count: each.images })}</span>
          <${Bar} share=${each.accuracy / 100} kind=${each.accuracy < WEAK ? "weak" : ""} /></li>`)}
    </ul>
  </div>
  ${held.confusions?.length > 0 && html`
    <h3>${t("result.confusions")}</h3>
    <ul class="confusions">
      ${held.confusions.map((each) => html`
        <li key=${`${each.true} ${each.predicted}`}>
          <p>${t("result.confusion", { actual: each.true, predicted: each.predicted, count: each.count })}</p>
          <${Pictures} files=${each.files} images=${images} actual=${each.true} predicted=${each.predicted} />
        </li>`)}
    </ul>
    <p class="hint">${t("result.advice")}</p>`}`;

function Pictures({ files = [], images, actual, predicted }) {
  const own = files.map((file) => images.get(file)).filter((image) => image?.thumbnail);
  return own.length > 0 && html`
    <div class="pictures">
      ${own.map(({ id, thumbnail, title }) => html`
        <img key=${id} src=${thumbnail} alt=${t("result.picture", { actual, predicted, title })} />`)}
    </div>`;
}
