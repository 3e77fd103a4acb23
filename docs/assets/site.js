/* What the theme leaves to be done for keyboards and screen readers, in elements that it adds when a page is open. */
function complete() {
  // Tables wider than the screen scroll in a box, which the keyboard has to reach.
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    box.tabIndex = 0;
    box.role = "group";
    box.ariaLabel = "Table";
  }
  // The buttons at a code block are no navigation.
  for (const bar of document.querySelectorAll("nav.md-code__nav:not([role])")) bar.role = "none";
}

new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
