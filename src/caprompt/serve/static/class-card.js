// A class of the next lesson: its name, its images, and the ways to add more.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Bar, FileButton, IconButton, Notice } from "./controls.js";
import { ADVISED } from "./draft.js";
import { readChosen } from "./files.js";
import { Icon } from "./icons.js";
import { Recorder } from "./recorder.js";
import { t } from "./texts.js";

const SHOWN = 17; // thumbnails of a closed list: three rows, with the button that opens it

export function ClassCard({ draft, entry, known, size, fresh, cameraOpen, onCamera }) {
  const card = useRef(null);
  const [taken, setTaken] = useState(null);
  const { key, name, images, problems } = entry;
  useEffect(() => {
    if (fresh) card.current.querySelector(fresh === "name" ? "input[type=text]" : ".card-actions button")?.focus();
  }, [fresh]);
  // The field is drawn anew with another name only: images that arrive meanwhile must not undo what is being typed.
  const rename = (event) => {
    const wanted = event.target.value.trim();
    const done = wanted === name || draft.rename(key, wanted);
    setTaken(done ? null : t(wanted ? "card.taken" : "card.unnamed", { name: wanted }));
    if (!done) event.target.value = name;
  };
  const add = (files) => draft.addToClass(key, readChosen(files));
  return html`
    <article ref=${card} class="card class-card" data-class=${key} aria-label=${name}>
      <div class="card-head">
        <label class="name"><span class="unseen">${t("card.name")}</span>
          <input key=${name} type="text" defaultValue=${name} maxlength="100" autocomplete="off" spellcheck="false" onChange=${rename}
            onKeyDown=${(event) => event.key === "Enter" && event.target.blur()}
            aria-describedby=${taken ? `${key}-taken` : null} />
          <${Icon} name="edit" />
        </label>
        <${IconButton} label=${t("card.remove", { name })} icon="close" onClick=${() => draft.removeClass(key)} />
      </div>
      ${taken && html`<p id="${key}-taken" class="hint bad" role="alert">${taken}</p>`}
      <${Count} images=${images} known=${known} />
      ${images.length > 0 && html`<${Thumbnails} images=${images} onRemove=${(id) => draft.removeImage(key, id)} />`}
      ${images.length === 0 && !cameraOpen && html`<p class="drop-here"><${Icon} name="images" />${t("card.empty")}</p>`}
      ${problems.length > 0 && html`<${Problems} problems=${problems} />`}
      ${cameraOpen
        ? html`<${Recorder} name=${name} size=${size} count=${images.length}
            onFrame=${(file) => draft.addImages(key, [file])} onClose=${() => onCamera(null)} />`
        : html`<div class="row card-actions">
            <button type="button" aria-label=${t("card.cameraFor", { name })} onClick=${() => onCamera(key)}>
              <${Icon} name="camera" />${t("card.camera")}</button>
            <${FileButton} label=${t("card.images")} name=${t("card.imagesFor", { name })} icon="images" onFiles=${add} />
            <${FileButton} label=${t("card.folder")} name=${t("card.folderFor", { name })} icon="folder" directory onFiles=${add} />
          </div>`}
    </article>`;
}

function Count({ images, known }) {
  const waiting = images.filter((image) => !image.sent).length;
  const missing = ADVISED - images.length;
  let advice = t("card.enough");
  if (known) advice = t("card.known");
  else if (missing > 0) advice = t("card.missing", { count: missing });
  return html`
    <div class="count">
      <p><strong>${t("card.count", { count: images.length })}</strong>
        <span class="hint">${waiting > 0 && images.length > 0 ? t("card.checking", { count: waiting }) : advice}</span></p>
      ${!known && html`<${Bar} share=${images.length / ADVISED} kind=${missing > 0 ? "" : "good"} />`}
    </div>`;
}

function Thumbnails({ images, onRemove }) {
  const [open, setOpen] = useState(false);
  const newest = [...images].reverse();
  const hidden = open || newest.length <= SHOWN + 1 ? 0 : newest.length - SHOWN;
  return html`
    <ul class="thumbnails">
      ${newest.slice(0, newest.length - hidden).map((image) => html`
        <${Thumbnail} key=${image.id} image=${image} onRemove=${onRemove} />`)}
      ${hidden > 0 && html`<li><button type="button" class="more" aria-label=${t("card.showAll", { count: newest.length })}
        onClick=${() => setOpen(true)}>+${hidden}</button></li>`}
    </ul>`;
}

function Thumbnail({ image, onRemove }) {
  const label = t("card.removeImage", { title: image.title });
  return html`
    <li>
      <button type="button" aria-label=${label} title=${label} onClick=${() => onRemove(image.id)}>
        ${image.thumbnail
          ? html`<img src=${image.thumbnail} alt="" />`
          : html`<span class="blank">${image.thumbnail === null && image.id.split(".").pop()}</span>`}
        <${Icon} name="close" />
      </button>
    </li>`;
}

const Problems = ({ problems }) => html`
  <${Notice}>
    <details>
      <summary>${t("card.problems", { count: problems.length })}</summary>
      <ul class="problems">
        ${problems.map((image) => html`
          <li key=${image.id}>${image.thumbnail && html`<img src=${image.thumbnail} alt="" />`}
            <span><b>${image.title}</b> ${image.problem}</span></li>`)}
      </ul>
    </details>
  <//>`;
