import { defineConfig } from "vite";

// `npm run dev` shows the page with hot reloading; what it asks goes to a server started beside it.
const SERVER = "http://127.0.0.1:8000";

export default defineConfig({
  base: "/page/",
  build: {
    outDir: "../src/octavo/server/operate/page",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox128", "safari17.5"], // they know light-dark(), so it stays as it is
    assetsInlineLimit: 0, // a data: URL would need an exception from the Content-Security-Policy
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: Object.fromEntries(["/v1", "/octavo", "/readyz"].map((path) => [path, SERVER])),
  },
});
