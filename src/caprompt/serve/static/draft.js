// What is prepared for the next lesson of a model: classes and their images, which the server checks as they come.

import { modelPath, packImages, post, remove } from "./api.js";
import { largestFile, takeChunk } from "./chunks.js";
import { flatten } from "./files.js";
import { makeThumbnail, releaseThumbnails } from "./images.js";
import { Store } from "./store.js";
import { t } from "./texts.js";

export const ADVISED = 20; // images a class; fewer are learned as well, less surely

const EMPTY = { classes: [], warnings: [], ignored: 0, error: null };
const drafts = new Map();
let count = 0;

// Return the draft of a model; it stays while the page is open.
export function draftOf(model) {
  if (!drafts.has(model)) drafts.set(model, new Draft(model));
  return drafts.get(model);
}

// Return an image under a name that is its own in this page, by which the server refers to it.
function makeImage(file) {
  const extension = /\.\w{1,5}$/.exec(file.name ?? "")?.[0].toLowerCase() ?? ".png";
  count += 1;
  const id = `i${String(count).padStart(6, "0")}${extension}`;
  return { id, title: file.name ?? "", blob: file, thumbnail: undefined, sent: false }; // null: there is no thumbnail
}

class Draft {
  upload = null;
  #store = new Store(EMPTY);
  #queue = Promise.resolve();
  #outdated = new Set(); // keys of classes whose images on the server are not those shown
  #labels = new Map(); // key of a class -> the name under which the server has its images

  constructor(model) {
    this.model = model;
  }

  use() {
    return this.#store.use();
  }

  get classes() {
    return this.#store.state.classes;
  }

  find(key) {
    return this.classes.find((each) => each.key === key);
  }

  findByName(name) {
    return this.classes.find((each) => each.name === name);
  }

  // -- what a person does ------------------------------------------------------------------------------------------------

  // Return the key of a class of this name, which is added if there is none.
  addClass(name) {
    const existing = this.findByName(name);
    if (existing) return existing.key;
    count += 1;
    const added = { key: `c${count}`, name, images: [], problems: [] };
    this.#store.set({ classes: [...this.classes, added] });
    return added.key;
  }

  // Return whether the name is free; the images are then sent again, under it.
  rename(key, name) {
    const other = this.findByName(name);
    if (!name || (other && other.key !== key)) return false;
    this.#update(key, () => ({ name }));
    this.#sendAgain(key);
    return true;
  }

  removeClass(key) {
    releaseThumbnails(this.find(key).images);
    this.#store.set({ classes: this.classes.filter((each) => each.key !== key) });
    this.#enqueue(() => this.#withdraw(key));
  }

  addImages(key, files) {
    const images = [...files].map(makeImage);
    this.#update(key, (each) => ({ images: [...each.images, ...images] }));
    this.#draw(key, images);
    this.#enqueue(() => this.#send(key));
    return images.length;
  }

  // Add the images of folders to the classes of their names; those without a folder to a class of `fallback`'s name.
  addGroups({ groups, ignored }, fallback) {
    this.#store.set({ ignored });
    const keys = [...groups].map(([name, files]) => {
      const key = this.addClass(name ?? fallback());
      this.addImages(key, files);
      return key;
    });
    return keys;
  }

  addToClass(key, { groups, ignored }) {
    this.#store.set({ ignored });
    return this.addImages(key, flatten(groups));
  }

  removeImage(key, id) {
    releaseThumbnails(this.find(key).images.filter((image) => image.id === id));
    this.#update(key, (each) => ({ images: each.images.filter((image) => image.id !== id) }));
    this.#sendAgain(key);
  }

  retry() {
    this.#store.set({ error: null });
    for (const { key } of this.classes) {
      if (this.#outdated.has(key)) this.#sendAgain(key);
      else this.#enqueue(() => this.#send(key));
    }
  }

  // Forget everything, and return the images by name: after a lesson they are shown beside its mistakes.
  clear() {
    const images = new Map(this.classes.flatMap((each) => each.images).map((image) => [image.id, image]));
    this.#store.set(EMPTY);
    this.#labels.clear();
    this.#outdated.clear();
    this.upload = null;
    return images;
  }

  discard() {
    const upload = this.upload;
    releaseThumbnails([...this.clear().values()]);
    if (upload) this.#enqueue(() => remove(modelPath(this.model, `/uploads/${upload}`)));
  }

  // -- what the server gets ----------------------------------------------------------------------------------------------

  #update(key, change) {
    this.#store.set({ classes: this.classes.map((each) => (each.key === key ? { ...each, ...change(each) } : each)) });
  }

  async #draw(key, images) {
    for (let start = 0; start < images.length; start += 8) {
      const part = images.slice(start, start + 8);
      const addresses = new Map();
      for (const image of part) addresses.set(image.id, await makeThumbnail(image.blob));
      const fill = (image) => (addresses.has(image.id) ? { ...image, thumbnail: addresses.get(image.id) } : image);
      this.#update(key, (each) => ({ images: each.images.map(fill), problems: each.problems.map(fill) }));
    }
  }

  #enqueue(work) {
    this.#queue = this.#queue.then(work).catch((error) => {
      if (error.status === 404) this.#beginUpload();
      this.#store.set({ error: error.message });
    });
  }

  // The server deletes images that wait for more than a day; a retry sends all of them again.
  #beginUpload() {
    this.upload = null;
    this.#labels.clear();
    for (const { key } of this.classes) this.#unsend(key);
  }

  #path(rest) {
    return modelPath(this.model, `/uploads/${this.upload}/images?label=${encodeURIComponent(rest)}`);
  }

  async #withdraw(key) {
    const label = this.#labels.get(key);
    if (label === undefined || !this.upload) return;
    const { warnings } = await remove(this.#path(label));
    this.#labels.delete(key);
    this.#store.set({ warnings });
  }

  // Send all images of a class once more: the server takes back classes, not single images. Several changes are sent as one.
  #sendAgain(key) {
    this.#unsend(key);
    this.#outdated.add(key);
    this.#enqueue(async () => {
      if (!this.#outdated.has(key)) return;
      await this.#withdraw(key);
      this.#unsend(key); // some may have been under way
      this.#outdated.delete(key);
      await this.#send(key);
    });
  }

  #unsend(key) {
    this.#update(key, (each) => ({ images: each.images.map((image) => ({ ...image, sent: false })) }));
  }

  async #send(key) {
    while (!this.#outdated.has(key)) {
      const chunk = this.#nextChunk(key);
      if (!chunk.length) return;
      const { name } = this.find(key);
      this.upload ??= (await post(modelPath(this.model, "/uploads"))).id;
      if (!this.find(key)) return; // it was removed meanwhile
      const answer = await post(this.#path(name), packImages(chunk.map(({ id, blob }) => ({ name: id, blob }))));
      this.#labels.set(key, name);
      this.#accept(key, chunk, answer);
    }
  }

  #nextChunk(key) {
    const waiting = (this.find(key)?.images ?? []).filter((image) => !image.sent);
    const tooLarge = waiting.filter((image) => image.blob.size > largestFile());
    if (tooLarge.length) {
      this.#accept(key, tooLarge, { problems: tooLarge.map(({ id }) => ({ file: id, problem: t("problem.large") })) });
      return this.#nextChunk(key);
    }
    return takeChunk(waiting);
  }

  // Mark images as checked; those with a problem leave their class.
  #accept(key, chunk, { problems = [], warnings = this.#store.state.warnings }) {
    if (!this.find(key)) return; // it was removed meanwhile
    const titles = new Map(this.classes.flatMap((each) => each.images).map(({ id, title }) => [id, title]));
    const translate = (sentence) => sentence.replace(/\bi\d{6}\.\w+/g, (id) => titles.get(id) ?? id);
    const found = new Map(problems.map(({ file, problem }) => [file, translate(problem)]));
    const checked = new Set(this.#outdated.has(key) ? [] : chunk.map(({ id }) => id)); // outdated ones are sent again
    this.#update(key, (each) => {
      const good = each.images.filter(({ id }) => !found.has(id));
      const bad = each.images.filter(({ id }) => found.has(id));
      return {
        images: good.map((image) => (checked.has(image.id) ? { ...image, sent: true } : image)),
        problems: [...each.problems, ...bad.map((image) => ({ ...image, problem: found.get(image.id) }))],
      };
    });
    this.#store.set({ warnings });
  }
}
