// The frame of the page: navigation, banner and the view of the address.
import { render } from "preact";
import { Certificates } from "./certificates";
import { Clouds } from "./clouds";
import { History } from "./history";
import { Networks } from "./networks";
import { NodeView } from "./node";
import { Nodes } from "./nodes";
import { Overview } from "./overview";
import { route } from "./router";
import { Rules } from "./rules";
import { hasData, overview, staleReasons, start } from "./store";
import "./style.css";
import { nextTheme, theme } from "./theme";

const VIEWS: [string, string][] = [
  ["overview", "Overview"],
  ["nodes", "Nodes"],
  ["certificates", "Certificates"],
  ["networks", "Pod CIDRs"],
  ["clouds", "Clouds"],
  ["rules", "Rules"],
  ["history", "History"],
];

function App() {
  const { view, name } = route.value;
  return (
    <>
      <a class="skip" href="#main" onClick={focusMain}>
        Skip to content
      </a>
      <header class="bar">
        <a class="brand" href="#/">
          <img src="icon.svg" alt="" width="24" height="24" />
          <span>Talos CCM</span>
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([key, title]) => (
            <a key={key} href={`#/${key}`} aria-current={view === key || (key === "nodes" && view === "node") ? "page" : undefined}>
              {title}
              {key === "nodes" && Boolean(overview.value.states.stuck) && <span class="count">{overview.value.states.stuck}</span>}
            </a>
          ))}
        </nav>
        <button type="button" class="button theme" onClick={nextTheme} aria-label={`Colours: ${theme.value}. Change`}>
          ◐ {theme.value === "auto" ? "Auto" : theme.value === "dark" ? "Dark" : "Light"}
        </button>
      </header>
      <Banner />
      <main id="main" tabIndex={-1}>
        {view === "nodes" ? (
          <Nodes />
        ) : view === "node" ? (
          <NodeView key={name} name={name} />
        ) : view === "certificates" ? (
          <Certificates />
        ) : view === "networks" ? (
          <Networks />
        ) : view === "clouds" ? (
          <Clouds />
        ) : view === "rules" ? (
          <Rules />
        ) : view === "history" ? (
          <History />
        ) : (
          <Overview />
        )}
      </main>
    </>
  );
}

function focusMain(event: Event) {
  event.preventDefault(); // the fragment of the address is the view
  document.getElementById("main")?.focus();
}

function Banner() {
  const reasons = staleReasons.value.filter(Boolean);
  if (!reasons.length || !hasData.value) return <div role="alert" />;
  return (
    <div class="banner" role="alert">
      <b>The data may be outdated.</b> {reasons.join("; ")}
    </div>
  );
}

render(<App />, document.getElementById("app")!);
start();
