// Keeps the shown pass in the page's address, so that a link can lead to it: #pass=12.

const REST = 250; // milliseconds; browsers refuse addresses that change too often

export function followAddress(clock) {
  const read = () => {
    const pass = /^#pass=(\d+)$/.exec(location.hash)?.[1];
    if (pass === undefined) return;
    clock.pause();
    clock.seek(Number(pass));
  };
  const write = () => {
    const hash = `#pass=${clock.pass}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
  };
  let waiting = 0;
  clock.addEventListener("pass", () => {
    clearTimeout(waiting);
    waiting = setTimeout(write, REST);
  });
  addEventListener("hashchange", read);
  read();
}
