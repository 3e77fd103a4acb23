// The dialogs that change a class. What the server refuses is shown as it says it.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Dialog, Notice, announce, closeDialog } from "./controls.js";
import { change } from "./model.js";
import { t } from "./texts.js";

// Return [state, run]: `run` changes the model, then closes the dialog of the form.
function useChange() {
  const [state, setState] = useState({ busy: false, error: null, status: 0 });
  const run = async (form, action, content, said) => {
    setState({ busy: true, error: null, status: 0 });
    try {
      await change(action, content);
      announce(said);
      form.closest("dialog")?.close();
    } catch (error) {
      setState({ busy: false, error: error.message, status: error.status });
    }
  };
  return [state, run];
}

const Buttons = ({ state, label, kind = "primary" }) => html`
  <div class="row end">
    <button type="button" class="quiet" onClick=${closeDialog}>${t("dialog.cancel")}</button>
    <button type="submit" class=${kind} disabled=${state.busy}>${label}</button>
  </div>`;

export function Rename({ name, onClose }) {
  const [state, run] = useChange();
  const submit = (event) => {
    event.preventDefault();
    const wanted = event.target.elements.wanted.value.trim();
    if (wanted && wanted !== name) run(event.target, "rename", { old: name, new: wanted }, t("rename.done", { name: wanted }));
  };
  return html`
    <${Dialog} title=${t("rename.title", { name })} onClose=${onClose}>
      <form onSubmit=${submit}>
        <label class="field">${t("rename.label")}
          <input name="wanted" type="text" value=${name} maxlength="100" required /></label>
        ${state.error && html`<${Notice} kind="error">${state.error}<//>`}
        <${Buttons} state=${state} label=${t("rename.do")} />
      </form>
    <//>`;
}

export function Merge({ name, classes, onClose }) {
  const [state, run] = useChange();
  const others = classes.map((each) => each.name).filter((each) => each !== name);
  const submit = (event) => {
    event.preventDefault();
    const { other, into } = event.target.elements;
    const wanted = into.value.trim() || name;
    run(event.target, "join", { names: [name, other.value], into: wanted }, t("merge.done", { name: wanted }));
  };
  return html`
    <${Dialog} title=${t("merge.title", { name })} onClose=${onClose}>
      <form onSubmit=${submit}>
        <p>${t("merge.text")}</p>
        <label class="field">${t("merge.other")}
          <select name="other">${others.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
        <label class="field">${t("merge.into")}<input name="into" type="text" value=${name} maxlength="100" required /></label>
        ${state.error && html`<${Notice} kind="error">${state.error}<//>`}
        <${Buttons} state=${state} label=${t("merge.do")} />
      </form>
    <//>`;
}

export function Forget({ name, onClose }) {
  const [state, run] = useChange();
  const form = useRef(null);
  const forget = (approximate) => run(form.current, "forget", { name, approximate }, t("forget.done", { name }));
  const refused = state.status === 409;
  const submit = (event) => {
    event.preventDefault();
    forget(refused);
  };
  return html`
    <${Dialog} title=${t("forget.title", { name })} onClose=${onClose}>
      <form ref=${form} onSubmit=${submit}>
        <p>${t("forget.text", { name })}</p>
        ${state.error && html`<${Notice} kind="error">${state.error}<//>`}
        ${refused && html`<p>${t("forget.approximate")}</p>`}
        <${Buttons} state=${state} label=${refused ? t("forget.doApproximate") : t("forget.do")} kind="danger" />
      </form>
    <//>`;
}
