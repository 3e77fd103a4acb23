// Light or dark: as the system says, until a person chooses.

const KEY = "caprompt-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

export const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

export function toggleTheme() {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem(KEY, chosen);
}

export function onThemeChange(listener) {
  system.addEventListener("change", listener);
  return () => system.removeEventListener("change", listener);
}
