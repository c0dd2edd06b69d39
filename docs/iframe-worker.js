// The theme searches in a web worker, which browsers refuse to pages opened from disk.
// There, run the worker's script in a hidden frame. mkdocs.yml loads this file in place
// of the theme's polyfill, which comes from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = new Promise((ready) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        document.documentElement.append(frame);
        const inside = frame.contentWindow;
        inside.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => ready(inside);
        inside.document.head.append(script);
      });
    }

    async postMessage(data) {
      (await this.frame).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
