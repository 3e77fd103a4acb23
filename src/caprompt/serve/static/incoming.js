// Files that are dropped on the page or pasted into it.

import { useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { holdsFiles } from "./files.js";

// Follow files that are dragged over the page. `onDrop` gets the event; return whether some are over it now.
export function useDrop(onDrop) {
  const [over, setOver] = useState(false);
  const latest = useRef(onDrop);
  latest.current = onDrop;
  useEffect(() => {
    const drag = (event) => {
      event.preventDefault();
      setOver(event.type === "dragover" && holdsFiles(event.dataTransfer));
    };
    const leave = (event) => event.relatedTarget === null && setOver(false);
    const drop = (event) => {
      event.preventDefault();
      setOver(false);
      if (holdsFiles(event.dataTransfer)) latest.current(event);
    };
    document.addEventListener("dragover", drag);
    document.addEventListener("dragleave", leave);
    document.addEventListener("drop", drop);
    return () => {
      document.removeEventListener("dragover", drag);
      document.removeEventListener("dragleave", leave);
      document.removeEventListener("drop", drop);
    };
  }, []);
  return over;
}

// Take files that are pasted while the component is shown.
export function usePaste(onFiles) {
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    const paste = (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      latest.current(files);
    };
    document.addEventListener("paste", paste);
    return () => document.removeEventListener("paste", paste);
  }, []);
}
