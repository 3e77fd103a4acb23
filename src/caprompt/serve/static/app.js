// The page: its header, the three views, and what is shown until a model is there.

import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { createModel } from "./api.js";
import { Announcer, IconButton, Loading, Notice } from "./controls.js";
import { draftOf } from "./draft.js";
import { Icon } from "./icons.js";
import { findWork, isRunning, work } from "./jobs.js";
import { Manage } from "./manage.js";
import { loadModels, models, showModel, shown } from "./model.js";
import { VIEWS, makeAddress, useRoute } from "./router.js";
import { Teach } from "./teach.js";
import { loadTexts, t } from "./texts.js";
import { isDark, onThemeChange, startTheme, toggleTheme } from "./theme.js";
import { Try } from "./try.js";

const COMPONENTS = { teach: Teach, try: Try, manage: Manage };

function App() {
  const route = useRoute();
  const { loaded, list, canCreate, error } = models.use();
  const name = list.some((each) => each.name === route.model) ? route.model : list[0]?.name;
  useEffect(() => {
    loadModels();
  }, []);
  useEffect(() => {
    if (!name) return;
    showModel(name);
    findWork(name).catch((reason) => work.set({ error: reason.message }));
  }, [name]);
  useEffect(() => {
    document.title = name ? t("page.title", { view: t(`nav.${route.view}`), name }) : t("page.name");
  }, [name, route.view]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>${t("page.skip")}</a>
    <${Header} name=${name} view=${route.view} list=${list} canCreate=${canCreate} />
    <main id="main" tabindex="-1">
      ${error && html`<${Notice} kind="error">${error}<//>`}
      ${!loaded && html`<${Loading} />`}
      ${loaded && !error && !name && html`<${FirstModel} canCreate=${canCreate} />`}
      ${name && html`<${View} key=${`${name}/${route.view}`} name=${name} view=${route.view} />`}
    </main>
    <footer><p>${t("page.footer")}</p></footer>
    <${Announcer} />`;
}

// The address of the page names a view, so the link to the content must not change it.
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function View({ name, view }) {
  const state = shown.use();
  if (state.error) return html`<${Notice} kind="error">${state.error}<//>`;
  if (state.name !== name || !state.model) return html`<${Loading} />`;
  return html`<${COMPONENTS[view]} name=${name} />`;
}

function Header({ name, view, list, canCreate }) {
  const several = list.length > 1 || canCreate;
  return html`
    <header class="top">
      <div class="brand">
        <img src="/static/icon.svg" alt="" width="32" height="32" />
        <span class="wordmark">${t("page.name")}</span>
        ${name && !several && html`<span class="model-name">${name}</span>`}
        ${name && several && html`<${Chooser} name=${name} view=${view} list=${list} canCreate=${canCreate} />`}
      </div>
      ${name && html`
        <nav aria-label=${t("nav.label")}>
          ${VIEWS.map((each) => html`
            <a key=${each} href=${makeAddress(name, each)} aria-current=${each === view ? "page" : null}>
              <${Icon} name=${each} />${t(`nav.${each}`)}</a>`)}
        </nav>`}
      <${ThemeButton} />
    </header>`;
}

function Chooser({ name, view, list, canCreate }) {
  const [adding, setAdding] = useState(false);
  const choose = (event) => {
    if (event.target.value) location.hash = makeAddress(event.target.value, view);
    else setAdding(true);
  };
  if (adding) return html`<${NewModel} onDone=${() => setAdding(false)} />`;
  return html`
    <select class="chooser" aria-label=${t("models.choose")} value=${name} onChange=${choose}>
      ${list.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
      ${canCreate && html`<option value="">${t("models.new")}</option>`}
    </select>`;
}

function NewModel({ onDone }) {
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const wanted = event.target.elements.model.value.trim();
    try {
      await createModel(wanted);
      await loadModels();
      location.hash = makeAddress(wanted, VIEWS[0]);
      onDone?.();
    } catch (reason) {
      setError(reason.message);
    }
  };
  return html`
    <form class="new-model" onSubmit=${submit}>
      <div class="joined">
        <input name="model" type="text" required maxlength="64" pattern="[A-Za-z0-9_\\-]+"
          aria-label=${t("models.name")} placeholder=${t("models.name")} />
        <button type="submit" class="primary">${t("models.create")}</button>
      </div>
      ${error && html`<p class="hint bad" role="alert">${error}</p>`}
    </form>`;
}

const FirstModel = ({ canCreate }) => html`
  <div class="blank-state">
    <${Icon} name="teach" />
    <h1>${t("models.none")}</h1>
    <p class="lead">${canCreate ? t("models.noneHint") : t("models.noneFixed")}</p>
    ${canCreate && html`<${NewModel} />`}
  </div>`;

function ThemeButton() {
  const [dark, setDark] = useState(isDark);
  useEffect(() => onThemeChange(() => setDark(isDark())), []);
  const toggle = () => {
    toggleTheme();
    setDark(isDark());
  };
  return html`
    <${IconButton} label=${t("page.dark")} icon=${dark ? "sun" : "moon"} kind="theme" aria-pressed=${dark} onClick=${toggle} />`;
}

// Images that were collected, but not learned yet, are lost with the page.
addEventListener("beforeunload", (event) => {
  const { name } = shown.state;
  if (name && draftOf(name).classes.some((each) => each.images.length) && !isRunning(work.state.job)) event.preventDefault();
});

startTheme();
await loadTexts();
render(html`<${App} />`, document.getElementById("app"));
