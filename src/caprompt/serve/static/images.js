// Images in the browser: which files are images, small pictures of them, and frames of a video.

const EXTENSIONS = /\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic|heif|ppm|pgm)$/i;
const THUMBNAIL = 112; // pixels: twice the size on the screen
const LOSSLESS = 96; // pixels: smaller frames are sent without loss

export const isImage = (file) => file.type.startsWith("image/") || EXTENSIONS.test(file.name);

function cut(source, width, height, size) {
  const side = Math.min(width, height);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d", { alpha: false });
  context.imageSmoothingQuality = "high";
  context.drawImage(source, (width - side) / 2, (height - side) / 2, side, side, 0, 0, size, size);
  return canvas;
}

const encode = (canvas, type, quality) => new Promise((resolve) => canvas.toBlob(resolve, type, quality));

// Return the address of a small square picture, or null where this browser cannot read the file (HEIC in most).
export async function makeThumbnail(blob, size = THUMBNAIL) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob);
  } catch {
    return null;
  }
  const canvas = cut(bitmap, bitmap.width, bitmap.height, size);
  bitmap.close();
  return URL.createObjectURL(await encode(canvas, "image/jpeg", 0.85));
}

// Give back the memory of pictures that are no longer shown.
export function releaseThumbnails(images) {
  for (const { thumbnail } of images) if (thumbnail) URL.revokeObjectURL(thumbnail);
}

// Return the middle square of the current frame of a video as a file of `size` pixels a side.
export function captureFrame(video, size) {
  const canvas = cut(video, video.videoWidth, video.videoHeight, size);
  return size <= LOSSLESS ? encode(canvas, "image/png") : encode(canvas, "image/jpeg", 0.92);
}
