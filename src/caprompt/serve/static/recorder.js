// Images of a class from the camera: as long as a button is held, by pointer or by key, frames are recorded.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { CameraView } from "./camera-view.js";
import { useCamera } from "./camera.js";
import { announce } from "./controls.js";
import { Icon } from "./icons.js";
import { captureFrame } from "./images.js";
import { t } from "./texts.js";

const INTERVAL = 125; // milliseconds between two frames
const BURST = 2000; // milliseconds, for those who press a button without holding it: screen readers
const KEYS = [" ", "Enter"];

// Return {recording, start, stop}; `onFrame` gets every frame as a file. `stop` returns whether there was something to stop.
function useRecording(camera, size, onFrame) {
  const [recording, setRecording] = useState(false);
  const timer = useRef(null);
  const take = async () => {
    const blob = await captureFrame(camera.video.current, size);
    if (blob) onFrame(new File([blob], t("camera.frame"), { type: blob.type }));
  };
  const start = () => {
    if (timer.current || !camera.ready) return;
    setRecording(true);
    take();
    timer.current = setInterval(take, INTERVAL);
  };
  const stop = () => {
    const stopped = timer.current !== null;
    clearInterval(timer.current);
    timer.current = null;
    setRecording(false);
    return stopped;
  };
  useEffect(() => () => void stop(), []);
  return { recording, start, stop };
}

export function Recorder({ name, size, count, onFrame, onClose }) {
  const camera = useCamera();
  const { recording, start, stop } = useRecording(camera, size, onFrame);
  const latest = useRef(count);
  latest.current = count;
  const release = () => {
    if (stop()) announce(t("card.count", { count: latest.current }));
  };
  const press = (event) => {
    if (!KEYS.includes(event.key)) return;
    event.preventDefault(); // otherwise the key's release is a click as well
    if (!event.repeat) start();
  };
  const lift = (event) => {
    if (!KEYS.includes(event.key)) return;
    event.preventDefault();
    release();
  };
  const click = (event) => {
    if (event.detail !== 0) return;
    start();
    setTimeout(release, BURST);
  };
  return html`
    <div class="recorder">
      <${CameraView} camera=${camera} label=${t("camera.preview", { name })} recording=${recording} />
      <div class="row">
        <button type="button" class="primary record ${recording ? "recording" : ""}" disabled=${!camera.ready}
          onPointerDown=${(event) => (event.target.setPointerCapture?.(event.pointerId), start())}
          onPointerUp=${release} onPointerCancel=${release} onLostPointerCapture=${release}
          onContextMenu=${(event) => event.preventDefault()}
          onKeyDown=${press} onKeyUp=${lift} onBlur=${release} onClick=${click}>
          <span class="dot" aria-hidden="true"></span>${recording ? t("camera.recording") : t("camera.hold")}
        </button>
        <button type="button" class="quiet" onClick=${onClose}><${Icon} name="close" />${t("camera.close")}</button>
      </div>
      <p class="hint">${t("camera.advice")}</p>
    </div>`;
}
