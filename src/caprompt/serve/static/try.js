// The view in which the model classifies what it is shown: files, or the live picture of the camera.

import { html, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { modelPath, packImages, post } from "./api.js";
import { Answer, describe } from "./answer.js";
import { takeChunk } from "./chunks.js";
import { FileButton, Notice, announce } from "./controls.js";
import { flatten, readChosen, readDropped } from "./files.js";
import { Icon } from "./icons.js";
import { makeThumbnail, releaseThumbnails } from "./images.js";
import { useDrop, usePaste } from "./incoming.js";
import { Live } from "./live.js";
import { shown } from "./model.js";
import { makeAddress, useHeading } from "./router.js";
import { t } from "./texts.js";

const PICTURE = 320; // pixels
const KEPT = 60; // answers on the page

let count = 0;

// Return the answers to some files, {name, blob} each.
async function ask(model, files) {
  const { predictions } = await post(modelPath(model, "/predict?top=5"), packImages(files));
  const pictures = await Promise.all(files.map(({ blob }) => makeThumbnail(blob, PICTURE)));
  return predictions.map((prediction, index) => {
    count += 1;
    return { key: count, title: files[index].blob.name, thumbnail: pictures[index], prediction };
  });
}

export function Try({ name }) {
  const heading = useHeading();
  const { classes, model } = shown.use();
  const [live, setLive] = useState(false);
  const [answers, setAnswers] = useState([]);
  const [waiting, setWaiting] = useState(0);
  const [error, setError] = useState(null);

  const keep = (change) =>
    setAnswers((before) => {
      const after = change(before);
      releaseThumbnails(before.filter((each) => !after.includes(each)));
      return after;
    });
  const classify = async (files) => {
    setError(null);
    setLive(false);
    let rest = files.map((blob, index) => ({ name: String(index), blob }));
    let last = null;
    try {
      while (rest.length) {
        setWaiting(rest.length);
        const chunk = takeChunk(rest);
        rest = rest.slice(chunk.length);
        const added = await ask(name, chunk);
        keep((before) => [...added, ...before].slice(0, KEPT));
        [last] = added;
      }
      if (last) announce(files.length === 1 ? describe(last.prediction) : t("try.done", { count: files.length }));
    } catch (reason) {
      setError(reason.message);
    }
    setWaiting(0);
  };
  const over = useDrop(async (event) => classify(flatten((await readDropped(event.dataTransfer)).groups)));
  const choose = (files) => classify(flatten(readChosen(files).groups));
  usePaste(choose);

  if (!classes.length) return html`<section class="view"><${Nothing} heading=${heading} name=${name} /></section>`;
  return html`
    <section class="view ${over ? "over" : ""}">
      <header class="view-head">
        <h1 ref=${heading} tabindex="-1">${t("try.title", { name })}</h1>
        <p class="lead">${t("try.lead", { count: classes.length })}</p>
      </header>
      <div class=${live ? "source" : "card source"}>
        ${!live && html`<p class="drop-here"><${Icon} name="images" />${t("try.drop")}</p>`}
        <div class="row">
          <${FileButton} label=${t("try.images")} icon="images" primary=${!live} onFiles=${choose} />
          <button type="button" onClick=${() => setLive(!live)}>
            <${Icon} name="camera" />${live ? t("try.stop") : t("try.camera")}</button>
        </div>
      </div>
      ${error && html`<${Notice} kind="error">${error}<//>`}
      ${waiting > 0 && html`<p class="hint" role="status">${t("try.waiting", { count: waiting })}</p>`}
      ${live && html`<${Live} name=${name} size=${model.image_size ?? 224} />`}
      ${answers.length > 0 && html`
        <div class="answers-head"><h2>${t("try.answers")}</h2>
          <button type="button" class="quiet" onClick=${() => keep(() => [])}>${t("try.clear")}</button></div>
        <ul class="answers">
          ${answers.map((each) => html`
            <li key=${each.key} class="card">
              ${each.thumbnail
                ? html`<img src=${each.thumbnail} alt="" />`
                : html`<span class="blank"><${Icon} name="images" /></span>`}
              ${each.prediction.error
                ? html`<${Notice} kind="error"><b>${each.title}</b> ${each.prediction.error}<//>`
                : html`<${Answer} prediction=${each.prediction} title=${each.title} />`}
            </li>`)}
        </ul>`}
      ${over && html`<div class="drop-veil" aria-hidden="true"><p><${Icon} name="try" />${t("try.dropNow")}</p></div>`}
    </section>`;
}

const Nothing = ({ heading, name }) => html`
  <div class="blank-state">
    <${Icon} name="try" />
    <h1 ref=${heading} tabindex="-1">${t("try.nothing", { name })}</h1>
    <p class="lead">${t("try.nothingHint")}</p>
    <a class="button primary" href=${makeAddress(name, "teach")}><${Icon} name="teach" />${t("try.teach")}</a>
  </div>`;
