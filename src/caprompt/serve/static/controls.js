// Small parts of which the views are made.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Icon } from "./icons.js";
import { t } from "./texts.js";

// A sentence about what went wrong or deserves attention. Errors are read out.
export const Notice = ({ kind = "warning", children }) => html`
  <div class="notice ${kind}" role=${kind === "error" ? "alert" : null}>
    <${Icon} name=${kind === "good" ? "check" : "warning"} /><div>${children}</div>
  </div>`;

// A button of which only the icon is seen.
export const IconButton = ({ label, icon, kind = "", ...rest }) => html`
  <button type="button" class="icon-button ${kind}" aria-label=${label} title=${label} ...${rest}>
    <${Icon} name=${icon} /></button>`;

// A button that opens the file chooser. `directory` chooses a folder with everything in it.
export function FileButton({ label, icon, directory = false, onFiles, name, primary = false }) {
  const input = useRef(null);
  useLayoutEffect(() => {
    if (directory) input.current.webkitdirectory = true;
  }, []);
  const take = (event) => {
    const files = [...event.target.files];
    event.target.value = ""; // so that the same files can be chosen again
    if (files.length) onFiles(files);
  };
  return html`
    <label class="button file ${primary ? "primary" : ""}">
      <${Icon} name=${icon} />${label}
      <input ref=${input} type="file" class="unseen" multiple aria-label=${name ?? label}
        accept=${directory ? null : "image/*,.heic,.heif,.avif,.tif,.tiff"} onChange=${take} />
    </label>`;
}

// A window over the page. `onClose` is called however it is closed.
export function Dialog({ title, children, onClose }) {
  const dialog = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  const outside = (event) => event.target === dialog.current && dialog.current.close();
  return html`
    <dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${onClose} onClick=${outside}>
      <div class="dialog">
        <h2 id="dialog-title">${title}</h2>
        ${children}
      </div>
    </dialog>`;
}

export const closeDialog = (event) => event.target.closest("dialog").close();

// A bar of a share between 0 and 1. What it means is in the text beside it.
export function Bar({ share, kind = "" }) {
  const width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return html`<span class="bar ${kind}" aria-hidden="true"><span style=${{ width }}></span></span>`;
}

// What a screen reader reads out, politely.
let say = () => {};
export const announce = (text) => say(text);

export function Announcer() {
  const [text, setText] = useState("");
  useEffect(() => {
    say = setText;
  }, []);
  return html`<div class="unseen" role="status" aria-live="polite">${text}</div>`;
}

export const Loading = () => html`<p class="loading" role="status">${t("loading")}</p>`;
