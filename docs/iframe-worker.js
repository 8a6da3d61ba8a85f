// Browsers do not start workers for pages that are opened from a folder. The search of the site asks for one: here it
// gets a hidden frame that loads the worker's script and passes messages in both directions.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((ready) => {
        this.frame.addEventListener("load", () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
          const script = inside.document.createElement("script");
          script.addEventListener("load", () => ready(inside));
          script.src = url;
          inside.document.body.append(script);
        }, {once: true});
      });
      document.body.append(this.frame);
    }

    async postMessage(data) {
      const inside = await this.ready;
      inside.dispatchEvent(new MessageEvent("message", {data: structuredClone(data)}));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
