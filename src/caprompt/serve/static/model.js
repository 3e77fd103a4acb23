// The models of this server, and the one that is shown.

import { get, getHealth, getModels, modelPath, post } from "./api.js";
import { Store } from "./store.js";

export const models = new Store({ loaded: false, list: [], canCreate: false, error: null });
export const shown = new Store({ name: null, model: null, classes: [], error: null });

export async function loadModels() {
  try {
    const [health, list] = await Promise.all([getHealth(), getModels()]);
    models.set({ loaded: true, list, canCreate: Boolean(health.can_create), error: null });
  } catch (error) {
    models.set({ loaded: true, error: error.message });
  }
}

export async function showModel(name) {
  if (shown.state.name !== name) shown.set({ name, model: null, classes: [], error: null });
  try {
    const [model, classes] = await Promise.all([get(modelPath(name)), get(modelPath(name, "/classes"))]);
    if (shown.state.name === name) shown.set({ model, classes, error: null });
  } catch (error) {
    if (shown.state.name === name) shown.set({ error: error.message });
  }
}

export const refresh = () => Promise.all([showModel(shown.state.name), loadModels()]);

// Change the model (undo, rename, join, forget) and show it as it then is.
export async function change(action, content) {
  await post(modelPath(shown.state.name, `/${action}`), content);
  await refresh();
}
