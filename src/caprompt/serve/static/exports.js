// Ways to take a model elsewhere: its folder as it is, or converted by a job of the server.

import { html, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { modelPath } from "./api.js";
import { Notice } from "./controls.js";
import { Icon } from "./icons.js";
import { JobProgress } from "./job-progress.js";
import { isRunning, start, work } from "./jobs.js";
import { t } from "./texts.js";

const FORMATS = ["model", "onnx", "browser"];

export function Exports({ name, model }) {
  const { job, error } = work.use();
  const [ready, setReady] = useState({}); // format -> the version of the model that it was made from
  const [format, setFormat] = useState(null);
  const busy = isRunning(job);
  const version = JSON.stringify(model.lessons);
  const convert = async (wanted) => {
    setFormat(wanted);
    const ended = await start(name, { kind: "export", format: wanted });
    if (ended?.state === "done") setReady((before) => ({ ...before, [wanted]: version }));
  };
  if (!model.classes) return null;
  const failed = format && job?.kind === "export" && job.state === "failed" ? job.error : null;
  return html`
    <section class="card" aria-labelledby="export-title">
      <h2 id="export-title">${t("export.title")}</h2>
      <p class="hint">${t("export.lead")}</p>
      <ul class="exports">
        ${FORMATS.map((each) => html`
          <li key=${each}>
            <span class="what"><b>${t(`export.${each}`)}</b><span class="hint">${t(`export.${each}Hint`)}</span></span>
            ${each === "model" || ready[each] === version
              ? html`<a class="button" href=${modelPath(name, `/download?format=${each}`)} download
                  aria-label=${t("export.downloadOf", { format: t(`export.${each}`) })}>
                  <${Icon} name="download" />${t("export.download")}</a>`
              : html`<button type="button" disabled=${busy} aria-label=${t("export.convertTo", { format: t(`export.${each}`) })}
                  onClick=${() => convert(each)}>${t("export.convert")}</button>`}
          </li>`)}
      </ul>
      ${job?.kind === "export" && busy && html`<${JobProgress} job=${job} />`}
      ${format && (failed || error) && html`<${Notice} kind="error">${failed ?? error}<//>`}
    </section>`;
}
