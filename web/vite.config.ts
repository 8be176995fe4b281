import { defineConfig } from "vite";

// `npm run dev` serves the page with hot reloading and forwards API requests to a separately started server.
const SERVER = "http://127.0.0.1:8000";

export default defineConfig({
  base: "/page/",
  build: {
    outDir: "../src/octavo/server/operate/page",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox128", "safari17.5"], // these support light-dark(), so it is not transpiled
    assetsInlineLimit: 0, // a data: URL would need an exception from the Content-Security-Policy
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: Object.fromEntries(["/v1", "/octavo", "/readyz"].map((path) => [path, SERVER])),
  },
});
