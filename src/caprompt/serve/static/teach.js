// The view in which new classes are collected and taught.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { ClassCard } from "./class-card.js";
import { FileButton, IconButton, Notice, announce } from "./controls.js";
import { draftOf } from "./draft.js";
import { flatten, readChosen, readDropped } from "./files.js";
import { Icon } from "./icons.js";
import { useDrop, usePaste } from "./incoming.js";
import { isRunning, needsAttention, work } from "./jobs.js";
import { LessonPanel } from "./lesson-panel.js";
import { LessonResult } from "./lesson-result.js";
import { shown } from "./model.js";
import { useHeading } from "./router.js";
import { formatDay, t } from "./texts.js";

const FRAME = 224; // pixels a side of camera images, until the model says what it sees
const FRAME_SCALE = 2; // they are larger than that, since training crops them

export function Teach({ name }) {
  const heading = useHeading();
  const draft = draftOf(name);
  const { classes } = draft.use();
  const { model, classes: learned } = shown.use();
  const { job } = work.use();
  const [fresh, setFresh] = useState({});
  const [camera, setCamera] = useState(null);
  const active = useRef(null); // the card that was used last: images without a folder go there

  const makeName = () => {
    const taken = new Set([...classes, ...learned].map((each) => each.name));
    const names = [t("teach.untitled"), ...Array.from({ length: 999 }, (_, index) => `${t("teach.untitled")} ${index + 2}`)];
    return names.find((each) => !taken.has(each));
  };
  const begin = (className) => {
    const key = draft.addClass(className);
    setFresh({ key, part: "actions" });
    return key;
  };
  const collect = (found, card) => {
    const count = flatten(found.groups).length;
    const loose = found.groups.size === 1 && found.groups.has(null);
    if (card) draft.addToClass(card, found);
    else {
      const keys = draft.addGroups(found, makeName);
      if (loose) setFresh({ key: keys[0], part: "name" });
    }
    announce(t("teach.added", { count }));
  };
  const over = useDrop(async ({ target, dataTransfer }) => {
    const card = target.closest?.("[data-class]");
    collect(await readDropped(dataTransfer), card?.dataset.class);
  });
  usePaste((files) => collect(readChosen(files), draft.find(active.current) ? active.current : null));

  if (!model.can_learn) {
    return html`
      <section class="view">
        <header class="view-head"><h1 ref=${heading} tabindex="-1">${t("teach.title", { name })}</h1></header>
        <${Notice}>${t("teach.cannot")}<//>
      </section>`;
  }
  const teaching = job?.kind === "learn" && isRunning(job);
  const empty = classes.length === 0;
  const alone = empty && learned.length > 0 && !teaching && !needsAttention(job); // nothing to say of a lesson
  const remember = (event) => {
    const card = event.target.closest("[data-class]");
    if (card) active.current = card.dataset.class;
  };
  return html`
    <section class="view ${over ? "over" : ""}" onfocusin=${remember} onPointerDown=${remember}>
      <header class="view-head">
        <h1 ref=${heading} tabindex="-1">${learned.length ? t("teach.title", { name }) : t("teach.titleFirst", { name })}</h1>
        <p class="lead">${learned.length ? t("teach.lead") : t("teach.leadFirst")}</p>
      </header>
      <${LessonResult} name=${name} />
      <div class="teach-layout ${empty ? "empty" : ""} ${alone ? "alone" : ""} ${teaching ? "teaching" : ""}">
        <div class="cards" inert=${teaching}>
          ${classes.map((entry) => html`
            <${ClassCard} key=${entry.key} draft=${draft} entry=${entry} known=${learned.some((each) => each.name === entry.name)}
              size=${model.image_size ? FRAME_SCALE * model.image_size : FRAME} fresh=${fresh.key === entry.key ? fresh.part : null}
              cameraOpen=${camera === entry.key} onCamera=${setCamera} />`)}
          <${NewClass} first=${empty && !learned.length} onName=${begin} onFiles=${(files) => collect(readChosen(files))} />
        </div>
        ${!alone && html`<${LessonPanel} name=${name} draft=${draft} onStart=${() => setCamera(null)} />`}
      </div>
      <${Learned} learned=${learned} onMore=${begin} />
      ${over && html`<div class="drop-veil" aria-hidden="true"><p><${Icon} name="folder" />${t("teach.drop")}</p></div>`}
    </section>`;
}

function NewClass({ first, onName, onFiles }) {
  const submit = (event) => {
    event.preventDefault();
    const input = event.target.elements.className;
    const className = input.value.trim();
    if (!className) return input.focus();
    input.value = "";
    onName(className);
  };
  return html`
    <div class="card new-class">
      <form onSubmit=${submit}>
        <label class="field" for="class-name">${first ? t("new.nameFirst") : t("new.name")}</label>
        <div class="joined">
          <input id="class-name" name="className" type="text" maxlength="100" autocomplete="off" placeholder=${t("new.example")} />
          <button type="submit" class=${first ? "primary" : ""}><${Icon} name="plus" />${t("new.add")}</button>
        </div>
      </form>
      <p class="or"><span>${t("new.or")}</span></p>
      <${FileButton} label=${t("new.folder")} icon="folder" directory onFiles=${onFiles} />
      <p class="hint">${t("new.folderHint")}</p>
    </div>`;
}

const Learned = ({ learned, onMore }) =>
  learned.length > 0 && html`
    <section class="learned" aria-labelledby="learned-title">
      <h2 id="learned-title">${t("learned.title", { count: learned.length })}</h2>
      <ul>
        ${learned.map((each) => html`
          <li key=${each.name}>
            ${each.thumbnail && html`<img src=${each.thumbnail} alt="" />`}
            <span class="what"><b>${each.name}</b>
              <span class="hint">${t("learned.detail", { count: each.images, date: formatDay(each.learned) })}</span></span>
            <${IconButton} label=${t("learned.more", { name: each.name })} icon="plus" onClick=${() => onMore(each.name)} />
          </li>`)}
      </ul>
    </section>`;
