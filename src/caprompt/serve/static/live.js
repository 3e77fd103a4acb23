// The picture of the camera, classified several times a second: one request at a time, the next with the frame of that moment.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { modelPath, post } from "./api.js";
import { Answer, describe } from "./answer.js";
import { CameraView } from "./camera-view.js";
import { useCamera } from "./camera.js";
import { Notice, announce } from "./controls.js";
import { captureFrame } from "./images.js";
import { formatNumber, t } from "./texts.js";

const SHORTEST = 100; // milliseconds between two requests
const STEADY = 5; // equal answers until one is read out

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export function Live({ name, size }) {
  const camera = useCamera();
  const [state, setState] = useState({ prediction: null, rate: 0, error: null });
  const spoken = useRef({ text: "", times: 0 });
  const speak = (prediction) => {
    const text = describe(prediction);
    const times = spoken.current.text === text ? spoken.current.times + 1 : 1;
    spoken.current = { text, times };
    if (times === STEADY) announce(text);
  };
  useEffect(() => {
    if (!camera.ready) return undefined;
    let stopped = false;
    (async () => {
      let rate = 0;
      while (!stopped) {
        const begin = performance.now();
        try {
          const blob = await captureFrame(camera.video.current, size);
          if (blob && !document.hidden) {
            const [prediction] = (await post(modelPath(name, "/predict?top=5"), blob)).predictions;
            if (stopped) return;
            speak(prediction);
            setState({ prediction, rate, error: null });
          }
        } catch (error) {
          if (stopped) return;
          setState((before) => ({ ...before, error: error.message }));
          await wait(2000); // the server is busy, or gone
        }
        await wait(Math.max(0, SHORTEST - (performance.now() - begin)));
        const now = 1000 / (performance.now() - begin);
        rate = rate ? 0.8 * rate + 0.2 * now : now;
      }
    })();
    return () => {
      stopped = true;
    };
  }, [camera.ready, name]);
  return html`
    <div class="card live">
      <div><${CameraView} camera=${camera} label=${t("live.preview")} /></div>
      <div class="live-answer">
        ${state.error && html`<${Notice} kind="error">${state.error}<//>`}
        ${state.prediction ? html`<${Answer} prediction=${state.prediction} />` : html`<p class="hint">${t("live.waiting")}</p>`}
        ${state.rate > 0 && html`<p class="hint rate">${t("live.rate", { rate: formatNumber(state.rate, 1) })}</p>`}
      </div>
    </div>`;
}
