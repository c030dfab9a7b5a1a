const plain = new Intl.NumberFormat("en");

/** For a sort: 2 is before 10. */
export const compareText = new Intl.Collator("en", { numeric: true }).compare;

export function count(value: number): string {
  return plain.format(value);
}

export function age(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7_200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${Math.round(s / 3_600)} h`;
  return `${Math.round(s / 86_400)} d`;
}

export function duration(seconds: number): string {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1_000)} ms`;
  return seconds < 100 ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : age(seconds);
}

export function rate(perSecond: number): string {
  if (perSecond <= 0) return "0/s";
  return perSecond < 10 ? `${perSecond.toFixed(1)}/s` : `${count(Math.round(perSecond))}/s`;
}

export function bytes(value: number): string {
  if (value < 1 << 20) return `${Math.round(value / 1024)} KiB`;
  return `${Math.round(value / (1 << 20))} MiB`;
}

export function time(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleTimeString("en-GB");
}

export const secondsOf = (text: string) => new Date(text).getTime() / 1_000;
export const timeOf = (text: string) => time(secondsOf(text));

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function decimal(value: number | null): string {
  return value === null ? "" : plain.format(Math.round(value * 100) / 100);
}
