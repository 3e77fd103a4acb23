// How far the server is with a lesson or an export, and how long it will still take.

import { html, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Notice } from "./controls.js";
import { cancel, work } from "./jobs.js";
import { formatDuration, formatPercent, formatStage, t } from "./texts.js";

export function JobProgress({ job }) {
  const { error } = work.use();
  const [stopping, setStopping] = useState(false);
  const stop = async () => {
    setStopping(true);
    await cancel();
    setStopping(false);
  };
  const left = job.seconds_left;
  return html`
    <div class="job">
      <p class="stage" role="status">${job.state === "queued" ? t("job.queued") : formatStage(job.stage)}</p>
      <progress max="1" value=${job.progress} aria-label=${t("job.progress")}></progress>
      <p class="hint"><span>${formatPercent(job.progress)}</span>
        <span>${left == null ? t("job.unknown") : t("job.left", { time: formatDuration(left) })}</span></p>
      <button type="button" disabled=${stopping} onClick=${stop}>${stopping ? t("job.stopping") : t("job.cancel")}</button>
      ${error && html`<${Notice} kind="error">${error}<//>`}
    </div>`;
}
