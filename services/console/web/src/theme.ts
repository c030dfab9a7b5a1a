// Light, dark, or as the system is.
import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";

const KEY = "talos-ccm-console-theme";
const CHOICES: Theme[] = ["auto", "light", "dark"];

function read(): Theme {
  try {
    const kept = localStorage.getItem(KEY) as Theme;
    return CHOICES.includes(kept) ? kept : "auto";
  } catch {
    return "auto"; // the browser keeps nothing for this page
  }
}

export const theme = signal<Theme>(read());

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // as above
  }
});

export function nextTheme(): void {
  theme.value = CHOICES[(CHOICES.indexOf(theme.value) + 1) % CHOICES.length]!;
}
