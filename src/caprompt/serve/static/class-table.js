// The classes of a model, and what can be done with each: rename, merge, forget.

import { html, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Forget, Merge, Rename } from "./class-dialogs.js";
import { IconButton } from "./controls.js";
import { formatDay, t } from "./texts.js";

const MANY = 12; // classes, from which on they can be searched
const ACTIONS = { rename: "edit", merge: "merge", forget: "trash" };
const DIALOGS = { rename: Rename, merge: Merge, forget: Forget };

export function ClassTable({ classes }) {
  const [words, setWords] = useState("");
  const [open, setOpen] = useState(null); // {action, name}
  const found = classes.filter((each) => each.name.toLowerCase().includes(words.toLowerCase()));
  return html`
    <section class="card" aria-labelledby="classes-title">
      <h2 id="classes-title">${t("classes.title")}</h2>
      ${!classes.length && html`<p class="hint">${t("classes.empty")}</p>`}
      ${classes.length >= MANY && html`
        <label class="field">${t("classes.search")}
          <input type="search" value=${words} onInput=${(event) => setWords(event.target.value)} /></label>`}
      <ul class="class-list">
        ${found.map((each) => html`
          <li key=${each.name}>
            ${each.thumbnail && html`<img src=${each.thumbnail} alt="" />`}
            <span class="what"><b>${each.name}</b>
              <span class="hint">${t("learned.detail", { count: each.images, date: formatDay(each.learned) })}</span></span>
            <span class="tools">
              ${Object.entries(ACTIONS).map(([action, icon]) => (action !== "merge" || classes.length > 1) && html`
                <${IconButton} key=${action} label=${t(`classes.${action}`, { name: each.name })} icon=${icon}
                  onClick=${() => setOpen({ action, name: each.name })} />`)}
            </span>
          </li>`)}
      </ul>
      ${open && html`<${DIALOGS[open.action]} name=${open.name} classes=${classes} onClose=${() => setOpen(null)} />`}
    </section>`;
}
