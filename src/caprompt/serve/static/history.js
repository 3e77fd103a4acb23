// What was learned and changed, the newest first, and the way back.

import { html, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Dialog, Notice, announce, closeDialog } from "./controls.js";
import { Icon } from "./icons.js";
import { dismiss } from "./jobs.js";
import { change } from "./model.js";
import { formatDate, formatDuration, shortenList, t } from "./texts.js";

export function History({ model }) {
  const [asking, setAsking] = useState(false);
  const lessons = [...model.lessons].reverse();
  return html`
    <section class="card" aria-labelledby="history-title">
      <div class="section-head">
        <h2 id="history-title">${t("history.title")}</h2>
        <button type="button" disabled=${!model.can_undo} onClick=${() => setAsking(true)}>
          <${Icon} name="undo" />${t("history.undo")}</button>
      </div>
      ${!lessons.length && html`<p class="hint">${t("history.empty")}</p>`}
      <ol class="timeline" reversed>
        ${lessons.map((lesson, index) => html`
          <li key=${lessons.length - index}>
            <p><b>${describe(lesson)}</b></p>
            <p class="hint">${listDetails(lesson)}</p>
          </li>`)}
      </ol>
      ${asking && html`<${Undo} last=${lessons[0]} onClose=${() => setAsking(false)} />`}
    </section>`;
}

function describe({ what, classes }) {
  const [old, ...rest] = classes;
  if (what === "learn") return t("history.learn", { names: shortenList(classes) });
  if (what === "rename") return t("history.rename", { old, name: rest[0] });
  if (what === "join") return t("history.join", { names: shortenList(classes.slice(0, -1)), name: classes[classes.length - 1] });
  return t(`history.${what}`);
}

function listDetails({ when, images, seconds }) {
  const parts = [formatDate(when)];
  if (images) parts.push(t("card.count", { count: images }));
  if (seconds) parts.push(formatDuration(seconds));
  return parts.join(" · ");
}

function Undo({ last, onClose }) {
  const [state, setState] = useState({ busy: false, error: null });
  const undo = async (event) => {
    const { target } = event;
    setState({ busy: true, error: null });
    try {
      await change("undo");
      dismiss(); // what was learned is no longer true
      announce(t("undo.done"));
      closeDialog({ target });
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return html`
    <${Dialog} title=${t("undo.title")} onClose=${onClose}>
      <p>${t("undo.text")}</p>
      <p><b>${describe(last)}</b><br /><span class="hint">${listDetails(last)}</span></p>
      ${state.error && html`<${Notice} kind="error">${state.error}<//>`}
      <div class="row end">
        <button type="button" class="quiet" onClick=${closeDialog}>${t("dialog.keep")}</button>
        <button type="button" class="primary" disabled=${state.busy} onClick=${undo}>${t("undo.do")}</button>
      </div>
    <//>`;
}
