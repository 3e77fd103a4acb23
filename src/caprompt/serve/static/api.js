// Requests to the server. A request that fails throws an Error whose message is the server's sentence.

import { t } from "./texts.js";

const ROOT = "/api/v1";

export const modelPath = (model, rest = "") => `${ROOT}/models/${encodeURIComponent(model)}${rest}`;

export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(t("error.offline"), 0);
  }
  const text = await response.text();
  const refuse = (sentence) => {
    throw new RequestError(sentence ?? t("error.status", { status: String(response.status) }), response.status);
  };
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    refuse(); // not from this server, but from something between
  }
  return response.ok ? answer : refuse(answer?.error);
}

export const get = (path) => send(path, {});
export const remove = (path) => send(path, { method: "DELETE" });

export function post(path, content) {
  if (content instanceof FormData || content instanceof Blob) return send(path, { method: "POST", body: content });
  const headers = { "Content-Type": "application/json" };
  return send(path, { method: "POST", headers, body: JSON.stringify(content ?? {}) });
}

export const getHealth = () => get(`${ROOT}/health`);
export const getModels = () => get(`${ROOT}/models`);
export const createModel = (name) => post(`${ROOT}/models`, { name });

// Return a form with images, each {name, blob}, in the field that the server expects.
export function packImages(images) {
  const form = new FormData();
  for (const image of images) form.append("images", image.blob, image.name);
  return form;
}
