// What a model keeps on disk: how much of what, and what that says about the images it learned.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { Bar } from "./controls.js";
import { Icon } from "./icons.js";
import { formatBytes, formatPart, t } from "./texts.js";

export function Kept({ model, pictures }) {
  const parts = [...model.parts].sort((a, b) => b.bytes - a.bytes);
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  return html`
    <section class="card" aria-labelledby="size-title">
      <h2 id="size-title">${t("size.title")}</h2>
      <p class="size">${formatBytes(model.bytes)}</p>
      <ul class="shares">
        ${parts.map((part) => html`
          <li key=${part.name}><b>${formatPart(part.name)}</b><span>${formatBytes(part.bytes)}</span>
            <${Bar} share=${part.bytes / total} /></li>`)}
      </ul>
      <h3><${Icon} name="lock" />${t("size.kept")}</h3>
      <ul class="kept">
        <li>${pictures ? t("size.thumbnails") : t("size.noImages")}</li>
        ${model.keeps.map((sentence) => html`<li key=${sentence}>${sentence}</li>`)}
      </ul>
    </section>`;
}
