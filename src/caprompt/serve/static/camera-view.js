// The picture of a camera, as a square: what lies outside is neither learned nor classified.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { Notice } from "./controls.js";
import { t } from "./texts.js";

export const CameraView = ({ camera, label, recording = false }) => html`
  ${camera.error && html`<${Notice} kind="error">${camera.error}<//>`}
  <div class="viewfinder ${recording ? "recording" : ""} ${camera.ready ? "" : "waiting"}" hidden=${Boolean(camera.error)}>
    <video ref=${camera.video} class=${camera.mirrored ? "mirrored" : ""} muted playsinline aria-label=${label}></video>
    ${!camera.ready && html`<span class="hint">${t("camera.starting")}</span>`}
  </div>
  ${camera.cameras.length > 1 && html`
    <label class="field inline">${t("camera.choose")}
      <select value=${camera.device} onChange=${(event) => camera.choose(event.target.value)}>
        ${camera.cameras.map((each, index) => html`
          <option value=${each.deviceId}>${each.label || t("camera.number", { number: index + 1 })}</option>`)}
      </select>
    </label>`}`;
