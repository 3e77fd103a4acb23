// The texts of the page, from texts.<language>.json, and numbers, sizes, times and dates in that language.

const LANGUAGES = ["en"]; // a translation is a file texts.<language>.json and an entry here

let language = LANGUAGES[0];
let texts = {};
let plural = new Intl.PluralRules(language);

export async function loadTexts() {
  const wanted = navigator.languages.map((each) => each.split("-")[0]);
  language = wanted.find((each) => LANGUAGES.includes(each)) ?? LANGUAGES[0];
  plural = new Intl.PluralRules(language);
  texts = await (await fetch(`/static/texts.${language}.json`)).json();
  document.documentElement.lang = language;
}

// Return a text with {names} replaced by values. A text of several forms is chosen by `values.count`.
export function t(key, values = {}) {
  const entry = texts[key];
  if (entry === undefined) throw new Error(`there is no text '${key}'`);
  const form = typeof entry === "string" ? entry : (entry[plural.select(values.count)] ?? entry.other);
  return form.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    return typeof value === "number" ? formatNumber(value) : value;
  });
}

export const formatNumber = (value, digits = 0) =>
  new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(value);

export const formatPercent = (share, digits = 0) =>
  new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: digits }).format(share);

const NAMED = 4; // items of a list that is shortened

// Return a list in which all but the first items are counted, where there are many.
export function shortenList(items) {
  if (items.length <= NAMED) return formatList(items);
  return formatList([...items.slice(0, NAMED - 1), t("list.others", { count: items.length - NAMED + 1 })]);
}

const findText = (key, otherwise) => (key in texts ? t(key) : otherwise);

// Return what the server calls a part of a model's folder, or a stage of a job, in words for people.
export const formatPart = (name) => findText(`part.${name.split(".")[0]}`, name);
export const formatStage = (name) => findText(`stage.${name}`, name);

export const formatList = (items) => new Intl.ListFormat(language).format(items);

// Return a number with one digit where it is small, and a unit.
const formatUnit = (value, unit, unitDisplay) =>
  new Intl.NumberFormat(language, {
    style: "unit", unit, unitDisplay, maximumFractionDigits: value < 10 && unit !== "byte" ? 1 : 0,
  }).format(value);

export function formatBytes(bytes) {
  if (bytes >= 1e9) return formatUnit(bytes / 1e9, "gigabyte", "short");
  if (bytes >= 1e6) return formatUnit(bytes / 1e6, "megabyte", "short");
  if (bytes >= 1e3) return formatUnit(bytes / 1e3, "kilobyte", "short");
  return formatUnit(bytes, "byte", "long");
}

export function formatDuration(seconds) {
  if (seconds >= 5400) return formatUnit(seconds / 3600, "hour", "long");
  if (seconds >= 90) return formatUnit(Math.round(seconds / 60), "minute", "long");
  return formatUnit(Math.max(1, Math.round(seconds)), "second", "long");
}

function formatTime(text, style) {
  const date = new Date(text ?? "");
  return Number.isNaN(date.getTime()) ? String(text ?? "") : new Intl.DateTimeFormat(language, style).format(date);
}

export const formatDay = (text) => formatTime(text, { dateStyle: "medium" });
export const formatDate = (text) => formatTime(text, { dateStyle: "medium", timeStyle: "short" });
