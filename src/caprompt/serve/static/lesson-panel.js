// The lesson that is prepared or going on: what it holds, what is wrong with it, and the button that starts it.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Notice, announce } from "./controls.js";
import { Icon } from "./icons.js";
import { JobProgress } from "./job-progress.js";
import { cancel, isRunning, resume, start, work } from "./jobs.js";
import { shown } from "./model.js";
import { t } from "./texts.js";

const HOLD_OUT = 0.2; // share of each class's images

export function LessonPanel({ name, draft, onStart }) {
  const { classes, warnings, ignored, error } = draft.use();
  const { classes: learned } = shown.use();
  const { job, error: jobError } = work.use();
  const [holdOut, setHoldOut] = useState(true);
  const panel = useRef(null);
  const teaching = job?.kind === "learn" && isRunning(job);
  useEffect(() => {
    if (teaching) panel.current.scrollIntoView({ block: "nearest" });
  }, [teaching]);

  const teach = async () => {
    onStart();
    announce(t("lesson.started"));
    const ended = await start(name, { kind: "learn", upload: draft.upload, hold_out: holdOut ? HOLD_OUT : 0 });
    if (ended?.state === "done") work.set({ images: draft.clear() });
  };
  if (teaching) {
    return html`<aside ref=${panel} class="card panel"><h2>${t("lesson.teaching")}</h2><${JobProgress} job=${job} /></aside>`;
  }
  const images = classes.flatMap((each) => each.images);
  const waiting = images.filter((image) => !image.sent).length;
  const ready = images.length > 0 && waiting === 0 && !isRunning(job);
  return html`
    <aside ref=${panel} class="card panel" aria-labelledby="lesson-title">
      <h2 id="lesson-title">${t("lesson.title")}</h2>
      <${LastJob} job=${job} error=${jobError} />
      <${Summary} classes=${classes} learned=${learned} images=${images.length} />
      ${error && html`
        <${Notice} kind="error">${error} <button type="button" class="link" onClick=${() => draft.retry()}>
          ${t("lesson.retry")}</button><//>`}
      ${ignored > 0 && html`<${Notice}>${t("lesson.ignored", { count: ignored })}<//>`}
      ${adviseOn(classes, warnings).map((sentence) => html`<${Notice} key=${sentence}>${sentence}<//>`)}
      ${images.length > 0 && html`
        <label class="check"><input type="checkbox" checked=${holdOut} onChange=${(event) => setHoldOut(event.target.checked)} />
          <span>${t("lesson.holdOut")}<span class="hint">${t("lesson.holdOutHint")}</span></span></label>`}
      <button type="button" class="primary large" disabled=${!ready} onClick=${teach}>
        <${Icon} name="teach" />${t("lesson.teach")}</button>
      ${waiting > 0 && html`<p class="hint" role="status">${t("card.checking", { count: waiting })}</p>`}
      ${classes.length > 0 && html`
        <button type="button" class="quiet" onClick=${() => draft.discard()}>${t("lesson.discard")}</button>`}
    </aside>`;
}

// Return sentences about a lesson that can be taught, but would better be changed first.
function adviseOn(classes, warnings) {
  const empty = classes.filter((each) => !each.images.length && !each.problems.length);
  return [...empty.map((each) => t("lesson.noImages", { name: each.name })), ...warnings];
}

function Summary({ classes, learned, images }) {
  if (!classes.length) {
    return html`<ol class="steps">
      ${["name", "show", "teach"].map((step) => html`
        <li key=${step}><b>${t(`steps.${step}`)}</b><span class="hint">${t(`steps.${step}Hint`)}</span></li>`)}
    </ol>`;
  }
  const known = classes.filter((each) => learned.some((other) => other.name === each.name)).length;
  const fresh = classes.length - known;
  return html`
    <ul class="summary">
      ${fresh > 0 && html`<li>${t("lesson.new", { count: fresh })}</li>`}
      ${known > 0 && html`<li>${t("lesson.known", { count: known })}</li>`}
      <li>${t("card.count", { count: images })}</li>
    </ul>`;
}

function LastJob({ job, error }) {
  if (error) return html`<${Notice} kind="error">${error}<//>`;
  if (job?.kind !== "learn") return null;
  if (job.state === "failed") return html`<${Notice} kind="error">${t("lesson.failed", { reason: job.error })}<//>`;
  if (job.state === "canceled") return html`<${Notice}>${t("lesson.canceled")}<//>`;
  if (job.state !== "interrupted") return null;
  return html`<${Notice}><p>${t("lesson.interrupted")}</p>
    <div class="row"><button type="button" onClick=${resume}>${t("lesson.resume")}</button>
      <button type="button" class="quiet" onClick=${cancel}>${t("lesson.giveUp")}</button></div><//>`;
}
