import { render } from "preact";
import { Client } from "./api/client";
import { App } from "./app";
import { Feed } from "./engine/feed";
import { ServerWatch } from "./parts/server_state";
import { ThemeChoice } from "./parts/theme";
import { Session } from "./playground/session";
import "./style/base.css";
import "./style/playground.css";
import "./style/engine.css";

const client = new Client();
const server = new ServerWatch(client);
const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no element with the id \"app\"");

render(
  <App
    client={client}
    server={server}
    session={new Session(client, server.model)}
    feed={new Feed(client)}
    theme={new ThemeChoice()}
  />,
  root,
);
