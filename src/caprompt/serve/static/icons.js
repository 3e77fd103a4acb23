// The icons of the page: paths on a grid of 24, drawn in the color of the text beside them.

import { html } from "./vendor/htm-preact-3.1.1.module.js";

const ICONS = {
  teach: "M4 6.5 12 3l8 3.5-8 3.5zM7 8.5V14c2.5 2.5 7.5 2.5 10 0V8.5M20 6.5V13",
  try: "M4 8V5a1 1 0 0 1 1-1h3M16 4h3a1 1 0 0 1 1 1v3M20 16v3a1 1 0 0 1-1 1h-3M8 20H5a1 1 0 0 1-1-1v-3M8.5 12l2.5 2.5 4.5-5",
  manage: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  camera:
    "M4 8h3l1.5-2.5h7L17 8h3a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V9a1 1 0 0 1 1-1z" +
    "M12 16.5a3.25 3.25 0 1 0 0-6.5 3.25 3.25 0 0 0 0 6.5z",
  folder: "M3 7a1 1 0 0 1 1-1h5l2 2.5h9a1 1 0 0 1 1 1V18a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1z",
  images: "M4 5h16v14H4zM4 16l4.5-4.5 3.5 3.5 3-3 5 5M15.5 9.5h.01",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6 6 18",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  merge: "M6 4v5c0 3 6 3 6 7v4M18 4v5c0 3-6 3-6 7",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  undo: "M8 5 4 9l4 4M4 9h10a5 5 0 0 1 0 10h-3",
  download: "M12 4v11M7.5 11 12 15.5 16.5 11M5 20h14",
  check: "M5 12.5l4.5 4.5L19 7",
  warning: "M12 4 2.5 20h19zM12 10v4.5M12 17.25h.01",
  sun:
    "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4" +
    "M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
};

export const Icon = ({ name }) => html`
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${ICONS[name]} /></svg>`;
