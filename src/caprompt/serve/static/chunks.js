// How many images go into one request: few enough for the limits of the server, and for progress to be seen.

import { shown } from "./model.js";

const IMAGES = 24;
const BYTES = 16e6;
const ROOM = 0.9; // share of the largest body that files may take; the rest is for what a form adds

// Return the most bytes that a file may have.
export const largestFile = () => ROOM * (shown.state.model?.limits.body_bytes ?? Infinity);

// Return the first of some files, {blob} each, that fit into a request; at least one, if there are any.
export function takeChunk(files) {
  const most = Math.min(IMAGES, shown.state.model?.limits.images ?? IMAGES);
  const room = Math.min(BYTES, largestFile());
  const chunk = files.slice(0, 1);
  let bytes = chunk[0]?.blob.size;
  for (const file of files.slice(1, most)) {
    bytes += file.blob.size;
    if (bytes > room) break;
    chunk.push(file);
  }
  return chunk;
}
