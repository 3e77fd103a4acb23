// The camera of this device: its picture in a <video>, and a choice where there are several.

import { useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { t } from "./texts.js";

const SIZE = { width: { ideal: 640 }, height: { ideal: 480 } };

function explain(error) {
  if (error.name === "NotAllowedError") return t("camera.denied");
  if (error.name === "NotFoundError" || error.name === "OverconstrainedError") return t("camera.none");
  return t("camera.failed", { reason: error.message });
}

async function open(device) {
  if (!navigator.mediaDevices) throw new Error(t("camera.insecure"));
  const video = device ? { ...SIZE, deviceId: { exact: device } } : { ...SIZE, facingMode: "user" };
  try {
    return await navigator.mediaDevices.getUserMedia({ video });
  } catch (error) {
    throw new Error(explain(error));
  }
}

// Return {video, ready, error, cameras, device, choose, mirrored} of a camera that is open while the component is shown.
export function useCamera() {
  const video = useRef(null);
  const [device, choose] = useState("");
  const [state, setState] = useState({ ready: false, error: null, cameras: [], mirrored: false });
  useEffect(() => {
    let stream = null;
    let closed = false;
    const stop = () => stream?.getTracks().forEach((track) => track.stop());
    (async () => {
      try {
        stream = await open(device);
        if (closed) return stop();
        video.current.srcObject = stream;
        await video.current.play();
        const cameras = (await navigator.mediaDevices.enumerateDevices()).filter((each) => each.kind === "videoinput");
        const { facingMode } = stream.getVideoTracks()[0].getSettings();
        if (!closed) setState({ ready: true, error: null, cameras, mirrored: facingMode !== "environment" });
      } catch (error) {
        if (!closed) setState((before) => ({ ...before, ready: false, error: error.message }));
      }
    })();
    return () => {
      closed = true;
      stop();
    };
  }, [device]);
  return { video, device, choose, ...state };
}
