// Classifies images in the browser. `labels.js` sets `capromptLabels`; `model.js` and `runtime/files.js` fill `capromptFiles`.
"use strict";

(() => {
  const SHOWN = 3; // classes of an answer
  // Larger images are drawn at 1/2, 1/4 or 1/8 of their size, but at no less than this many times the model's input: enough for
  // the same answer, and a photo of 48 million pixels would take gigabytes.
  const DRAWN = 8;
  const labels = globalThis.capromptLabels;
  const find = (id) => document.getElementById(id);
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });

  let session;
  let last = Promise.resolve(); // the model answers one question at a time

  const say = (text) => { find("status").textContent = text; };
  const count = (number, word) => `${number} ${word}${number === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  // -- loading ------------------------------------------------------------------------------------------------------------------

  // The files are scripts with compressed data, since a page that was opened from a disk may load scripts, but not read files.
  async function unpack(name) {
    const parts = await Promise.all(
      globalThis.capromptFiles[name].map(async (text) => (await fetch(`data:application/octet-stream;base64,${text}`)).blob()));
    delete globalThis.capromptFiles[name];
    return new Response(new Blob(parts).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  }

  async function load() {
    const [module, binary, model] = await Promise.all(["module", "binary", "model"].map(unpack));
    const { wasm } = ort.env;
    wasm.numThreads = 1; // threads need headers that few servers send
    wasm.wasmBinary = binary;
    wasm.wasmPaths = { mjs: URL.createObjectURL(new Blob([module], { type: "text/javascript" })) };
    session = await ort.InferenceSession.create(new Uint8Array(model), { executionProviders: ["wasm"] });
  }

  // -- classification -----------------------------------------------------------------------------------------------------------

  function draw(image, width, height) {
    const factor = [8, 4, 2].find((each) => Math.min(width, height) / each >= DRAWN * labels.imageSize) ?? 1;
    const canvas = make("canvas", { width: Math.ceil(width / factor), height: Math.ceil(height / factor) });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "white"; // behind transparent pixels, as in training
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas;
  }

  function toTensor(canvas) {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height); // red, green, blue, alpha
    const pixels = new Uint8Array(width * height * 3);
    for (let from = 0, to = 0; from < data.length; from += 4) {
      pixels[to++] = data[from];
      pixels[to++] = data[from + 1];
      pixels[to++] = data[from + 2];
    }
    return new ort.Tensor("uint8", pixels, [1, height, width, 3]);
  }

  function classify(canvas) {
    const answer = last.then(async () => {
      const { scores, unknown } = await session.run({ images: toTensor(canvas) }, ["scores", "unknown"]);
      const top = [...scores.data]
        .map((score, index) => ({ label: labels.classes[index], score }))
        .sort((one, other) => other.score - one.score)
        .slice(0, SHOWN);
      return { top, unknown: unknown.data[0] };
    });
    last = answer.catch(() => {});
    return answer;
  }

  function fill(element, { top, unknown }, source = "") {
    const rows = top.flatMap(({ label, score }) => [
      make("dt", { textContent: label }),
      make("dd", { textContent: percent.format(score) }),
      make("dd", { className: "bar", ariaHidden: "true" }, make("progress", { max: 1, value: score })),
    ]);
    element.replaceChildren(
      make("p", { className: "label", textContent: top[0].label }),
      ...(source ? [make("p", { className: "source", textContent: source })] : []),
      make("dl", { className: "scores" }, ...rows),
      make("p", { className: "unknown", textContent: `unknown: ${percent.format(unknown)}` }),
    );
    Object.assign(element.dataset, { label: top[0].label, score: top[0].score, unknown });
  }

  // -- files --------------------------------------------------------------------------------------------------------------------

  async function decode(file) {
    // Upright, and without the conversion of colors that the model was not trained with.
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
    const canvas = draw(bitmap, bitmap.width, bitmap.height);
    bitmap.close();
    return canvas;
  }

  function makeThumbnail(canvas, name) {
    const scale = Math.min(1, 192 / Math.max(canvas.width, canvas.height));
    const [width, height] = [canvas.width, canvas.height].map((side) => Math.max(1, Math.round(side * scale)));
    const thumbnail = make("canvas", { width, height, role: "img", ariaLabel: name });
    thumbnail.getContext("2d").drawImage(canvas, 0, 0, width, height);
    return thumbnail;
  }

  async function classifyFiles(files) {
    const unreadable = [];
    let done = 0;
    for (const file of files) {
      say(`Classifying image ${done + unreadable.length + 1} of ${files.length} …`);
      const canvas = await decode(file).catch(() => null);
      if (canvas === null) {
        unreadable.push(file.name);
        continue;
      }
      const element = make("div", { className: "answer" });
      fill(element, await classify(canvas), file.name);
      find("results").prepend(make("li", {}, makeThumbnail(canvas, file.name), element));
      find("answers").hidden = false;
      done += 1;
    }
    const problems = unreadable.length ? ` This browser cannot read ${unreadable.join(", ")}.` : "";
    say(`${count(done, "image")} classified.${problems}`);
  }

  function accept(files) {
    if (files?.length && session) classifyFiles([...files]).catch(report);
  }

  // -- camera -------------------------------------------------------------------------------------------------------------------

  const nextFrame = () => new Promise((resolve) => { requestAnimationFrame(resolve); });

  function stopCamera() {
    const video = find("video");
    video.srcObject?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
    find("live").hidden = true;
    find("camera").setAttribute("aria-pressed", "false");
    find("camera").textContent = "Use the camera";
  }

  async function startCamera() {
    if (!navigator.mediaDevices) {
      say("The camera can only be used by a page from https or from a local file.");
      return;
    }
    find("camera").disabled = true; // while the user is asked
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      say(error.name === "NotAllowedError" ? "The camera may not be used: allow it in the browser." : "No camera was found.");
      return;
    } finally {
      find("camera").disabled = false;
    }
    const video = find("video");
    video.srcObject = stream;
    await video.play();
    find("live").hidden = false;
    find("camera").setAttribute("aria-pressed", "true");
    find("camera").textContent = "Stop the camera";
    say("The camera is classified continuously.");
    while (video.srcObject === stream) {
      const answer = await classify(draw(video, video.videoWidth, video.videoHeight));
      if (video.srcObject === stream) fill(find("live-answer"), answer);
      await nextFrame();
    }
  }

  // -- the page -----------------------------------------------------------------------------------------------------------------

  function report(error) {
    console.error(error);
    say(`Something went wrong: ${error.message}`);
  }

  function describe() {
    document.title = labels.name;
    find("title").textContent = labels.name;
    find("summary").prepend(`${count(labels.classes.length, "class")}. `);
    find("origin").textContent = labels.origin;
    find("classes").append(...labels.classes.map((name) => make("li", { textContent: name })));
  }

  function listen() {
    find("files").addEventListener("change", ({ target }) => { accept(target.files); target.value = ""; });
    find("clear").addEventListener("click", () => { find("results").replaceChildren(); find("answers").hidden = true; find("files").focus(); });
    find("camera").addEventListener("click", () => { if (find("video").srcObject) stopCamera(); else startCamera().catch(report); });
    document.addEventListener("paste", ({ clipboardData }) => { accept(clipboardData?.files); });
    for (const [type, inside] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
      document.addEventListener(type, (event) => {
        event.preventDefault();
        document.body.classList.toggle("dragging", inside);
        if (type === "drop") accept(event.dataTransfer?.files);
      });
    }
  }

  async function main() {
    describe();
    listen();
    await load();
    find("files").disabled = false;
    find("camera").disabled = false;
    say("Ready.");
  }

  main().catch(report);
})();
