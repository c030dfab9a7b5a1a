// The frame of the page: navigation, banner and the view of the address.
import { type ComponentType, render } from "preact";
import { useEffect } from "preact/hooks";
import { Certificates } from "./certificates";
import { Clouds } from "./clouds";
import { History } from "./history";
import { Networks } from "./networks";
import { NodeView } from "./node";
import { Nodes } from "./nodes";
import { Overview } from "./overview";
import { Empty } from "./parts";
import { route } from "./router";
import { Rules } from "./rules";
import { hasData, overview, problems, settings, start } from "./store";

const VIEWS: Record<string, [title: string, view: ComponentType]> = {
  overview: ["Overview", Overview],
  nodes: ["Nodes", Nodes],
  certificates: ["Certificates", Certificates],
  networks: ["Pod CIDRs", Networks],
  clouds: ["Clouds", Clouds],
  rules: ["Rules", Rules],
  history: ["History", History],
};

function App() {
  const { view, name } = route.value;
  const Content = VIEWS[view]?.[1] ?? Overview;
  return (
    <>
      <a
        class="absolute top-3 -left-249 z-9 rounded-lg bg-surface px-3.5 py-2 focus:left-3"
        href="#main"
        onClick={focusMain}
      >
        Skip to content
      </a>
      <header class="sticky top-0 z-5 flex flex-wrap items-center gap-x-5 gap-y-1 border-b bg-surface px-3 py-2 md:px-6">
        <a class="flex flex-1 items-center gap-2.5 font-semibold text-plain md:flex-none" href="#/">
          <img src="icon.svg" alt="" class="size-6" />
          Talos CCM
        </a>
        <Navigation view={view === "node" ? "nodes" : view} />
        {settings.value.user && (
          <form method="post" action="logout">
            <button class="button" title={`Logged in as ${settings.value.user}`}>
              Log out
            </button>
          </form>
        )}
      </header>
      <div role="alert">
        {hasData.value && problems.value.length > 0 && (
          <p class="banner border-b bg-current/14 px-3 py-2.5 text-warning md:px-6">
            <b>The data may be outdated.</b> {problems.value.join("; ")}
          </p>
        )}
      </div>
      <main id="main" tabIndex={-1} class="flex flex-1 flex-col outline-none">
        {!hasData.value && <Empty title="Waiting for the console">The first data arrives within a second.</Empty>}
        {hasData.value && (view === "node" ? <NodeView key={name} name={name} /> : <Content key={view} />)}
      </main>
    </>
  );
}

function Navigation({ view }: { view: string }) {
  useEffect(() => {
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [view]);
  const stuck = overview.value.states?.stuck;
  return (
    <nav
      aria-label="Views"
      class="order-last flex flex-[1_0_100%] gap-1 overflow-x-auto [scrollbar-width:none] md:order-none md:flex-1"
    >
      {Object.entries(VIEWS).map(([key, [title]]) => (
        <a key={key} href={`#/${key}`} class="tab" aria-current={view === key ? "page" : undefined}>
          {title}
          {key === "nodes" && Boolean(stuck) && (
            <span class="rounded-full bg-current/14 px-1.5 text-xs text-bad">{stuck}</span>
          )}
        </a>
      ))}
    </nav>
  );
}

function focusMain(event: Event) {
  event.preventDefault(); // the fragment of the address is the view
  document.getElementById("main")?.focus();
}

render(<App />, document.getElementById("app")!);
start();
