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
const place = document.getElementById("app");
if (place === null) throw new Error("index.html has no place for the page");

render(
  <App
    client={client}
    server={server}
    session={new Session(client, server.model)}
    feed={new Feed(client)}
    theme={new ThemeChoice()}
  />,
  place,
);
