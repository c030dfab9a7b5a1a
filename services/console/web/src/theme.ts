// Light, dark, or as the system is.
import { effect, signal } from "@preact/signals";

const KEY = "talos-ccm-console-theme";
const CHOICES = ["auto", "light", "dark"];

export const theme = signal(read());

effect(() => {
  document.documentElement.style.colorScheme = theme.value === "auto" ? "light dark" : theme.value;
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // the browser keeps nothing for this page
  }
});

function read(): string {
  try {
    const kept = localStorage.getItem(KEY) ?? "";
    return CHOICES.includes(kept) ? kept : "auto";
  } catch {
    return "auto"; // as above
  }
}

export function nextTheme(): void {
  theme.value = CHOICES[(CHOICES.indexOf(theme.value) + 1) % CHOICES.length]!;
}
