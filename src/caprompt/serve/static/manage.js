// The view of what a model knows and keeps: its classes, its history, its size, and ways to take it elsewhere.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { ClassTable } from "./class-table.js";
import { Exports } from "./exports.js";
import { History } from "./history.js";
import { Kept } from "./kept.js";
import { shown } from "./model.js";
import { useHeading } from "./router.js";
import { formatBytes, t } from "./texts.js";

export function Manage({ name }) {
  const heading = useHeading();
  const { model, classes } = shown.use();
  const changes = t("manage.changes", { count: model.lessons.length });
  return html`
    <section class="view">
      <header class="view-head">
        <h1 ref=${heading} tabindex="-1">${t("manage.title", { name })}</h1>
        <p class="lead">${t("manage.lead", { count: classes.length, changes, size: formatBytes(model.bytes) })}</p>
      </header>
      <div class="manage-layout">
        <div class="column">
          <${ClassTable} classes=${classes} />
          <${Exports} name=${name} model=${model} />
        </div>
        <div class="column">
          <${History} model=${model} />
          <${Kept} model=${model} pictures=${classes.some((each) => each.thumbnail)} />
        </div>
      </div>
    </section>`;
}
