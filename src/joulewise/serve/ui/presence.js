// Whether the server is there: a word in the frame, and a line across the page while it is not.
//
// The page keeps what it showed; what it missed it asks for when the server is back, without being asked to.

import { dropToken, follow, hasToken } from "./api.js";
import { fill, h, say } from "./dom.js";
import { moment } from "./format.js";

const SOON_MS = 1500; // a server that is back within this was hardly away

/** Follow the server's news from now on: `tell(kind, data)` for each; `back()` when it can be heard again. */
export function present({ tell, back }) {
  const live = document.getElementById("live");
  const away = document.getElementById("away");
  const words = h("span", {});
  const button = h("button", { type: "button", onclick: () => retry() });
  let heard = false; // ever
  let since_s = 0; // when it was last heard
  let timer = 0; // runs, or has run, while it is away
  let retry = () => {};

  function there() {
    const before = heard || timer; // else there was nothing that could have been missed
    clearTimeout(timer);
    timer = 0;
    away.hidden = true;
    fill(away);
    heard = true;
    if (before) back();
  }

  function gone(why) {
    if (!timer) {
      since_s = Date.now() / 1000;
      timer = setTimeout(() => {
        fill(away, words, " ", button);
        away.hidden = false;
      }, SOON_MS);
    }
    // A server that refuses is there, and says itself what is the matter.
    if (why?.status) say(words, why.message);
    else if (!heard) say(words, "The server does not answer; trying again …");
    else say(words, `The server has not answered since ${moment(since_s)}. What you see is from then; it goes on by itself.`);
    const another = why?.status === 403 && hasToken();
    say(button, another ? "Give another" : why?.status === 401 ? "Give one" : "Try now");
    retry = () => {
      if (another) dropToken();
      again();
    };
  }

  const again = follow(tell, (state, why) => {
    live.dataset.state = state;
    say(live, state === "live" ? "live" : "not live");
    live.title = state === "live" ? "News come as they happen." : "No news from the server; trying again.";
    if (state === "live") there();
    else gone(why);
  });
}
