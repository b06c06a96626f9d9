"use strict";
// Looks at the page that it stands in, as a reader would, and writes what it finds into the page around it.
{
  const shown = (node) => node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if ((parts(colour)[3] ?? 1) === 1 && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;

  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("script, title, desc") || !shown(node)) continue;
    if (isDark && node.closest(".picture")) continue; // it is inverted as a whole
    texts += 1;
    const style = getComputedStyle(node);
    const ratio = contrast(node.ownerSVGElement ? style.fill : style.color, behind(node));
    if (ratio < 4.5) faint.push([node.textContent, ratio]);
  }
  const marks = [...document.querySelectorAll(".chart rect, .chart .curve, .chart circle")].filter(shown);
  for (const mark of marks) {
    const style = getComputedStyle(mark);
    const ratio = contrast(mark.matches(".curve") ? style.stroke : style.fill, behind(mark));
    if (ratio < 3) faint.push([mark.getAttribute("class"), ratio]);
  }

  const outside = [...document.querySelectorAll("body *")].filter((node) =>
    shown(node) && !node.closest(".scroll, .picture, pre, script, .skip")
    && node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML.slice(0, 80));
  const overlaps = [];
  for (const row of document.querySelectorAll(".chart > g")) {
    const [label, value] = [...row.querySelectorAll("text")].filter(shown).map((text) => text.getBoundingClientRect());
    if (value && label.right > value.left) overlaps.push(row.textContent);
  }

  const sorted = [];
  for (const table of document.querySelectorAll("table")) {
    const rows = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
    const before = rows();
    const button = table.querySelector("th button");
    if (!button) continue;
    const orders = [0, 1].map(() => { button.click(); return [button.closest("th").getAttribute("aria-sort"), rows()]; });
    sorted.push({ before, orders });
  }

  const zooms = [];
  for (const picture of document.querySelectorAll(".picture")) {
    const svg = picture.querySelector("svg");
    const width = () => Math.round(svg.getBoundingClientRect().width);
    const widths = [width()];
    const buttons = [...picture.parentElement.querySelectorAll(".zoom button")];
    for (const button of buttons) { button.click(); widths.push(width()); }
    picture.dispatchEvent(new KeyboardEvent("keydown", { key: "0", cancelable: true }));
    widths.push(width());
    picture.dispatchEvent(new KeyboardEvent("keydown", { key: "-", cancelable: true }));
    widths.push(width());
    zooms.push({ widths, room: picture.clientWidth, names: buttons.map((button) => button.getAttribute("aria-label")) });
  }

  const unreachable = [];
  const stops = [...document.querySelectorAll("a, button, summary, [tabindex='0']")].filter(shown);
  for (const stop of stops) {
    stop.focus({ preventScroll: true });
    if (document.activeElement !== stop) unreachable.push(stop.outerHTML.slice(0, 80));
  }
  const found = {
    problems: window.problems, isDark, width: innerWidth, paper: getComputedStyle(document.body).backgroundColor,
    scrollWidth: document.documentElement.scrollWidth, texts, marks: marks.length, stops: stops.length,
    faint, outside, overlaps, sorted, zooms, unreachable,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name),
  };
  const script = parent.document.createElement("script");
  script.type = "application/json";
  script.id = "found";
  script.textContent = JSON.stringify(found).replaceAll("<", "\\u003c");
  parent.document.body.append(script);
}
