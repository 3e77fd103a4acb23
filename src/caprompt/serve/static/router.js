// Addresses within the page: #model/view. Links are ordinary ones, and the browser's back button works.

import { useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";

export const VIEWS = ["teach", "try", "manage"];

export const makeAddress = (model, view) => `#${encodeURIComponent(model)}/${view}`;

function read() {
  const [model, view] = location.hash.slice(1).split("/");
  return { model: decodeURIComponent(model || ""), view: VIEWS.includes(view) ? view : VIEWS[0] };
}

export function useRoute() {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const follow = () => setRoute(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}

// Return a reference for the heading of a view, which is focused when the view was reached by a link.
export function useHeading() {
  const heading = useRef(null);
  useEffect(() => {
    if (moved) heading.current?.focus({ preventScroll: true });
    if (moved) scrollTo(0, 0);
  }, []);
  return heading;
}

let moved = false; // the first view of a page keeps the focus where the browser puts it
addEventListener("hashchange", () => (moved = true));
