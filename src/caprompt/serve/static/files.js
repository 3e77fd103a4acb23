// Files that a person chose, dropped or pasted, with the class that their folder stands for.

import { isImage } from "./images.js";

// Return the class of a path: the first sub-folder, or the folder itself if the file lies directly in it; null without a folder.
export function readClassName(path) {
  const parts = path.split("/").filter(Boolean);
  if (parts.length < 2) return null;
  return parts.length === 2 ? parts[0] : parts[1];
}

const list = (entry) =>
  new Promise((resolve, reject) => {
    const reader = entry.createReader();
    const found = [];
    const next = () => reader.readEntries((part) => (part.length ? (found.push(...part), next()) : resolve(found)), reject);
    next(); // a reader returns at most a hundred entries a call
  });

async function walk(entry, path) {
  if (entry.isFile) return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path: path + entry.name }];
  const below = await list(entry);
  below.sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const files = [];
  for (const each of below) files.push(...(await walk(each, `${path}${entry.name}/`)));
  return files;
}

// Return {groups: Map from class name (null: no folder) to files, ignored: number of files that are no images}.
function group(found) {
  const groups = new Map();
  let ignored = 0;
  for (const { file, path } of found) {
    if (path.split("/").some((part) => part.startsWith("."))) continue; // what a system puts beside the images
    if (!isImage(file)) {
      ignored += 1;
      continue;
    }
    const name = readClassName(path);
    groups.set(name, [...(groups.get(name) ?? []), file]);
  }
  return { groups, ignored };
}

export async function readDropped(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry?.()); // all at once: the list is emptied after this event
  if (!entries.length || entries.some((entry) => !entry)) return readChosen(transfer.files);
  const found = [];
  for (const entry of entries) found.push(...(await walk(entry, "")));
  return group(found);
}

export const readChosen = (files) => group([...files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));

export const flatten = (groups) => [...groups.values()].flat();

export const holdsFiles = (transfer) => [...(transfer?.types ?? [])].includes("Files");
