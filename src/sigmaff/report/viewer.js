"use strict";
// Draws molecules as depth-sorted shaded balls, coloured by σ, on plain canvases.
// Data: {stops: ["#rrggbb", ...], low, middle, high, surroundings: {low, middle, high} | null, sets: [{frames: [{index, rms,
// elements, positions, radii, std, error | null, surroundings | null, bonds}]}]}; positions in Å about the origin, σ and
// errors in eV/Å, surroundings in eV. Set k is shown by the element with data-set="k".
(() => {
  const data = JSON.parse(document.getElementById("viewer-data").textContent);
  const stops = data.stops.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

  const scales = {
    forces: { ...data, name: "Force σ (eV/Å)", of: (frame) => frame.std },
    surroundings: { ...data.surroundings, name: "How unusual the surroundings of an atom are (eV)", of: (frame) => frame.surroundings },
  };
  let scale = scales.forces;

  // σ -> rgb, logarithmic between the ends of the scale.
  const colour = (std) => {
    const t = Math.log(std / scale.low) / Math.log(scale.high / scale.low);
    const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
    const k = Math.min(Math.floor(at), stops.length - 2);
    return stops[k].map((channel, i) => channel + (at - k) * (stops[k + 1][i] - channel));
  };
  const mixed = (rgb, target, share) => rgb.map((channel) => channel + share * (target - channel));
  const css = (rgb) => `rgb(${rgb.map(Math.round).join(" ")})`;
  const dark = (rgb) => 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 130;

  const product = (a, b) => a.map((row) => [0, 1, 2].map((j) => row[0] * b[0][j] + row[1] * b[1][j] + row[2] * b[2][j]));
  const rotation = (about_x, about_y) => {
    const [cx, sx, cy, sy] = [Math.cos(about_x), Math.sin(about_x), Math.cos(about_y), Math.sin(about_y)];
    return product([[1, 0, 0], [0, cx, -sx], [0, sx, cx]], [[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]]);
  };

  function drawBall(context, ball) {
    const { x, y, radius, rgb } = ball;
    const shade = context.createRadialGradient(x - 0.35 * radius, y - 0.4 * radius, 0.05 * radius, x, y, radius);
    shade.addColorStop(0, css(mixed(rgb, 255, 0.55)));
    shade.addColorStop(0.45, css(rgb));
    shade.addColorStop(1, css(mixed(rgb, 0, 0.35)));
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = shade;
    context.fill();
    context.lineWidth = ball.hovered ? 3 : 1;
    context.strokeStyle = ball.hovered ? "#d55e00" : css(mixed(rgb, 0, 0.5));
    context.stroke();
    if (radius < 8) return;
    context.fillStyle = dark(rgb) ? "#fff" : "#111";
    context.font = `600 ${Math.round(Math.min(0.85 * radius, 18))}px system-ui, sans-serif`;
    context.fillText(ball.element, x, y + 1);
  }

  // Each half of a bond takes the colour of its atom; the balls, drawn later, cover its ends.
  function drawBond(context, from, to, width) {
    const middle = [(from.x + to.x) / 2, (from.y + to.y) / 2];
    for (const end of [from, to]) {
      context.beginPath();
      context.moveTo(end.x, end.y);
      context.lineTo(...middle);
      context.lineWidth = width;
      context.strokeStyle = css(mixed(mixed(end.rgb, 128, 0.35), 0, 0.1));
      context.stroke();
    }
  }

  function viewer(element) {
    const frames = data.sets[Number(element.dataset.set)].frames;
    const canvas = element.querySelector("canvas");
    const caption = element.querySelector(".viewer-caption");
    const note = element.querySelector(".viewer-note");
    const buttons = [...element.querySelectorAll("button")];
    const context = canvas.getContext("2d");
    let frame, balls = [], hovered = -1, zoom = 1, turn = rotation(0.35, 0.5);

    function project(width, height) {
      const extent = Math.max(...frame.positions.map((p, i) => Math.hypot(...p) + frame.radii[i]), 1);
      const size = (zoom * 0.44 * Math.min(width, 1.35 * height)) / extent;
      balls = frame.positions.map((p, i) => {
        const [x, y, z] = turn.map((row) => row[0] * p[0] + row[1] * p[1] + row[2] * p[2]);
        const near = 1 / (1 - z / (6 * extent)); // a weak perspective
        return {
          x: width / 2 + size * near * x, y: height / 2 - size * near * y, z, radius: size * near * frame.radii[i],
          rgb: colour(scale.of(frame)[i]), element: frame.elements[i], hovered: i === hovered, index: i,
        };
      });
      return size;
    }

    function draw() {
      const ratio = window.devicePixelRatio || 1;
      const { clientWidth: width, clientHeight: height } = canvas;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.lineCap = "round";
      const size = project(width, height);
      const parts = balls.map((ball) => [ball.z, () => drawBall(context, ball)]);
      for (const [i, j] of frame.bonds) {
        const depth = Math.min(balls[i].z, balls[j].z); // behind both of its balls
        parts.push([depth - 1e-6, () => drawBond(context, balls[i], balls[j], 0.16 * size)]);
      }
      parts.sort((a, b) => a[0] - b[0]).forEach(([, paint]) => paint());
    }

    const unusual = (atom) => frame.surroundings === null ? "" : `, surroundings ${frame.surroundings[atom].toPrecision(2)} eV`;

    function describe() {
      const atom = hovered < 0 ? null : hovered;
      const error = atom === null || frame.error === null ? "" : `, |error| ${frame.error[atom].toPrecision(2)} eV/Å`;
      note.textContent = atom === null ? "Hover over an atom to read its σ." :
        `${frame.elements[atom]}, atom ${atom}: σ ${frame.std[atom].toPrecision(2)} eV/Å${error}${unusual(atom)}`;
    }

    function show(k) {
      frame = frames[k];
      hovered = -1;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === k)));
      caption.textContent = `Structure ${frame.index}, ${frame.elements.length} atoms, σ ${frame.rms.toPrecision(2)} eV/Å`;
      describe();
      draw();
    }

    function hover(event) {
      const hit = balls.filter((b) => Math.hypot(event.offsetX - b.x, event.offsetY - b.y) <= b.radius);
      const top = hit.length ? hit.reduce((a, b) => (b.z > a.z ? b : a)).index : -1;
      if (top === hovered) return;
      hovered = top;
      describe();
      draw();
    }

    const rotate = (dx, dy) => { turn = product(rotation(0.01 * dy, 0.01 * dx), turn); draw(); };
    const magnify = (factor) => { zoom = Math.min(Math.max(zoom * factor, 0.3), 8); draw(); };
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) rotate(event.movementX, event.movementY);
      else hover(event);
    });
    canvas.addEventListener("pointerleave", () => { hovered = -1; describe(); draw(); });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); magnify(Math.exp(-0.001 * event.deltaY)); }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const turns = { ArrowLeft: [-10, 0], ArrowRight: [10, 0], ArrowUp: [0, -10], ArrowDown: [0, 10] };
      const zooms = { "+": 1.1, "=": 1.1, "-": 1 / 1.1 };
      if (event.key in turns) { event.preventDefault(); rotate(...turns[event.key]); }
      if (event.key in zooms) { event.preventDefault(); magnify(zooms[event.key]); }
    });
    buttons.forEach((button, k) => button.addEventListener("click", () => show(k)));
    new ResizeObserver(draw).observe(canvas);
    show(Math.floor(frames.length / 2));
    return draw;
  }

  const redraws = [...document.querySelectorAll(".viewer")].map(viewer);
  const choices = [...document.querySelectorAll(".colour-by button")];
  choices.forEach((button) => button.addEventListener("click", () => {
    scale = scales[button.dataset.scale];
    choices.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    document.querySelector(".scale-name").textContent = scale.name;
    const ticks = [scale.low, scale.middle, scale.high];
    document.querySelectorAll(".colourbar .ticks span").forEach((tick, k) => { tick.textContent = ticks[k].toPrecision(2); });
    redraws.forEach((draw) => draw());
  }));
})();
