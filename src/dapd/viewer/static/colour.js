// Colours: viridis by step, even in lightness, safe for colour-blind eyes; text black or white, whichever reads best.

const VIRIDIS = [
  [68, 1, 84], [72, 35, 116], [64, 67, 135], [52, 94, 141], [41, 120, 142], [32, 144, 140],
  [34, 167, 132], [68, 190, 112], [121, 209, 81], [189, 222, 38], [253, 231, 36],
];

export const prefersDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

const mix = (a, b, share) => a.map((value, i) => value + (b[i] - value) * share);

const css = (rgb) => `rgb(${rgb.map((value) => Math.round(value)).join(" ")})`;

const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const v = value / 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The colour of a share of the way, 0 (early, light) to 1 (late, dark); never as dark or light as the page itself. */
function along(share, dark) {
  const [from, to] = dark ? [0.94, 0.2] : [0.86, 0.05];
  // The power gives the first passes, where a fast decoder does all of its work, more of the scale.
  const at = (from + (to - from) * Math.min(1, Math.max(0, share)) ** 0.7) * (VIRIDIS.length - 1);
  const low = Math.min(VIRIDIS.length - 2, Math.floor(at));
  return mix(VIRIDIS[low], VIRIDIS[low + 1], at - low);
}

export const stepColour = (share, dark = prefersDark()) => css(along(share, dark));

/** Background and text colour of a token, by step alone: what is decided never fades towards the page. */
export function tokenColours(share, dark) {
  const back = along(share, dark);
  return { back: css(back), front: luminance(back) > 0.179 ? "#000000" : "#ffffff" };
}

export const DOUBTS = [["doubtful", 0.5], ["unsure", 0.9]]; // classes of a token, by the confidence that it stays below

/** How a token's confidence is drawn: the class of its underline, or null where the model was sure. */
export const doubt = (confidence) => DOUBTS.find(([, below]) => confidence < below)?.[0] ?? null;

const BLACK = [0, 0, 0];
const WHITE = [255, 255, 255];

/** A decoder's colour, moved away from the page's where it would drown in it; its n-th twin gets another shade. */
export function lineColour(hex, twin = 0, dark = prefersDark()) {
  const rgb = apart(/^#[0-9a-f]{6}$/i.test(hex) ? parse(hex) : [136, 136, 136], dark);
  if (!twin) return css(rgb);
  const ink = dark ? WHITE : BLACK;
  const isInk = Math.abs(luminance(rgb) - luminance(ink)) < 0.05;
  if (isInk) return css(mix(rgb, [128, 128, 128], [0.6, 0.95, 0.3][(twin - 1) % 3]));
  const [end, share] = [[ink, 0.35], [ink, 0.7], [dark ? BLACK : WHITE, 0.3]][(twin - 1) % 3];
  return css(mix(rgb, end, share));
}

function apart(rgb, dark) {
  const light = luminance(rgb);
  if (dark && light < 0.12) return mix(rgb, WHITE, light < 0.02 ? 0.8 : 0.45);
  return !dark && light > 0.6 ? mix(rgb, BLACK, 0.3) : rgb;
}
