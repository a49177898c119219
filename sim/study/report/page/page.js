// Draws the charts of the page. The element "drawings" has their data. Colours come from the style
// sheet, which has a light and a dark set.
(function () {
  "use strict";
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const charts = [];
  const colors = 8;
  const marks = ["circle", "rect", "triangle", "rectRot", "cross", "star"];
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  const css = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const colorOf = (series, index) => css(series.color || "series-" + (index % colors));
  const narrow = () => document.documentElement.clientWidth < 560;

  function bytes(value) {
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    return Number(value.toPrecision(3)) + " " + units[unit];
  }
  function plain(value) {
    return Math.abs(value) >= 1e6 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  }

  // Wraps a label into at most two lines of `width` characters, after blanks and underscores.
  function wrap(text, width) {
    const lines = [""];
    for (const word of text.split(/(?<=[ _])/)) {
      const last = lines[lines.length - 1];
      if (last !== "" && (last + word).trimEnd().length > width) {
        lines.push(word);
      } else {
        lines[lines.length - 1] = last + word;
      }
    }
    const shown = lines.slice(0, 2).map((line) =>
      line.length > width ? line.slice(0, width - 1) + "\u2026" : line);
    if (lines.length > 2 && !shown[1].endsWith("\u2026")) {
      shown[1] = shown[1].slice(0, width - 1) + "\u2026";
    }
    return shown;
  }

  function scale(axis, extra) {
    const log = axis.scale === "log";
    const format = axis.format === "bytes" ? bytes : plain;
    const made = {
      type: log ? "logarithmic" : "linear",
      title: { display: true, text: axis.title, color: css("ink") },
      ticks: {
        color: css("soft"),
        maxRotation: 0,
        autoSkipPadding: 14,
        callback: (value) => (Number.isFinite(value) ? format(value) : ""),
      },
      grid: { color: css("line"), borderColor: css("soft"), drawTicks: false },
    };
    for (const end of ["min", "max"]) {
      if (axis[end] !== undefined) {
        made[end] = axis[end];
      }
    }
    if (log && axis.format === "bytes") {
      // Capacities are powers of two more often than of ten.
      made.afterBuildTicks = (built) => {
        const first = Math.ceil(Math.log2(built.min));
        const last = Math.floor(Math.log2(built.max));
        const step = Math.max(1, Math.ceil((last - first) / (narrow() ? 4 : 9)));
        built.ticks = [];
        for (let power = first; power <= last; power += step) {
          built.ticks.push({ value: Math.pow(2, power) });
        }
      };
    } else if (log) {
      made.afterBuildTicks = (built) => {
        const span = built.max / built.min;
        const kept = span > (narrow() ? 100 : 3000) ? [1] : [1, 2, 5];
        built.ticks = built.ticks.filter((tick) => {
          const digits = tick.value / Math.pow(10, Math.floor(Math.log10(tick.value) + 1e-9));
          const round = Math.round(digits * 100) / 100;
          return span < 8 ? Number.isInteger(round * 2) : kept.includes(round);
        });
      };
    }
    return Object.assign(made, extra);
  }

  function labelScale() {
    return {
      type: "category",
      ticks: {
        color: css("ink"),
        autoSkip: false,
        callback(value) {
          return wrap(this.getLabelForValue(value), narrow() ? 15 : 30);
        },
      },
      grid: { display: false, borderColor: css("soft") },
    };
  }

  // Stripes of a colour, for runs whose load exceeds capacity.
  function hatch(color) {
    const tile = document.createElement("canvas");
    tile.width = 8;
    tile.height = 8;
    const draw = tile.getContext("2d");
    draw.globalAlpha = 0.35;
    draw.fillStyle = color;
    draw.fillRect(0, 0, 8, 8);
    draw.globalAlpha = 1;
    draw.strokeStyle = color;
    draw.lineWidth = 2;
    for (const at of [-4, 0, 4]) {
      draw.beginPath();
      draw.moveTo(at, 8);
      draw.lineTo(at + 8, 0);
      draw.stroke();
    }
    return draw.createPattern(tile, "repeat");
  }
  const fills = (drawing, color) =>
    drawing.labels.map((_, i) => (drawing.hatched[i] ? hatch(color) : color));

  const labelFont = () => "12px " + getComputedStyle(document.body).fontFamily;

  // Writes a text after the end of each bar; without room there, into the bar or before it.
  const barTexts = (texts) => ({
    id: "barTexts",
    afterDatasetsDraw(chart) {
      const draw = chart.ctx;
      draw.save();
      draw.font = labelFont();
      draw.textBaseline = "middle";
      texts(chart).forEach(({ text, start, x, y }) => {
        const width = draw.measureText(text).width + 6;
        const behind = x + width < chart.chartArea.right;
        const inside = !behind && x - start > width + 6;
        draw.textAlign = behind ? "left" : "right";
        draw.fillStyle = css(inside ? "paper" : "ink");
        draw.fillText(text, behind ? x + 6 : (inside ? x : start) - 6, y);
      });
      draw.restore();
    },
  });
  // One text for each label, at the end of its longest bar.
  const atEnds = (text) => barTexts((chart) =>
    chart.data.labels.map((_, i) => {
      const bars = chart.data.datasets.map((set, at) => chart.getDatasetMeta(at))
        .filter((meta) => meta.type === "bar").map((meta) => meta.data[i]);
      return { text: text(i), start: Math.min(...bars.map((bar) => bar.base)),
               x: Math.max(...bars.map((bar) => bar.x)), y: bars[0].y };
    }));

  function options(scales, tooltip) {
    return {
      animation: false,
      maintainAspectRatio: false,
      responsive: true,
      scales,
      plugins: {
        legend: {
          position: "top",
          align: "start",
          labels: { color: css("ink"), usePointStyle: true, boxWidth: 8, boxHeight: 8, padding: 12 },
        },
        tooltip: { callbacks: tooltip },
      },
    };
  }

  const makers = {
    bars(drawing) {
      const made = options({ x: scale(drawing.x, { stacked: true, min: 0 }),
                             y: Object.assign(labelScale(), { stacked: true }) },
                           { label: (item) => item.dataset.label + ": " + plain(item.parsed.x) });
      made.indexAxis = "y";
      return {
        type: "bar",
        data: {
          labels: drawing.labels,
          datasets: drawing.series.map((series, i) => ({
            label: series.name,
            data: series.values,
            backgroundColor: fills(drawing, colorOf(series, i)),
            maxBarThickness: 26,
            pointStyle: "rect",
          })),
        },
        options: made,
        plugins: [atEnds((i) => plain(
          drawing.series.reduce((sum, series) => sum + series.values[i], 0)))],
      };
    },

    ranges(drawing) {
      const pairs = (from, to) => drawing[from].map((value, i) => [value, drawing[to][i]]);
      const at = (i) => ["p50", "p90", "p95", "p99", "mean"].map((name) =>
        name + ": " + plain(drawing[name][i]) + " s");
      const made = options({ x: scale(drawing.x), y: labelScale() },
                           { label: (item) => at(item.dataIndex) });
      made.indexAxis = "y";
      made.interaction = { mode: "y", intersect: false };
      made.plugins.tooltip.filter = (item) => item.datasetIndex === 0;
      const bar = (name, from, to, color) => ({
        type: "bar",
        label: name,
        data: pairs(from, to),
        backgroundColor: fills(drawing, color),
        grouped: false,
        maxBarThickness: 18,
        minBarLength: 2,
        pointStyle: "rect",
        order: 2,
      });
      // The scale has room on both sides of all bars.
      const all = drawing.p50.concat(drawing.p99, drawing.mean);
      made.scales.x.min = Math.min(...all) / 1.3;
      made.scales.x.max = Math.max(...all) * 1.3;
      return {
        data: {
          labels: drawing.labels,
          datasets: [
            bar("p50 to p90", "p50", "p90", css("series-0")),
            bar("p90 to p99", "p90", "p99", css("series-5")),
            {
              type: "line",
              label: "mean",
              data: drawing.mean,
              showLine: false,
              pointStyle: "rectRot",
              radius: 6,
              borderColor: css("paper"),
              borderWidth: 1.5,
              backgroundColor: css("series-1"),
              order: 1,
            },
          ],
        },
        options: made,
        plugins: [atEnds((i) => plain(drawing.p99[i]))],
      };
    },

    beside(drawing) {
      const made = options({ x: scale(drawing.x, { min: 0 }), y: labelScale() },
                           { label: (item) => item.dataset.label + ": " +
                                              [].concat(item.raw).map(plain).join(" to ") });
      made.indexAxis = "y";
      const bar = (name, data, color) => ({
        label: name,
        data,
        backgroundColor: css(color),
        maxBarThickness: 16,
        minBarLength: 2,
        pointStyle: "rect",
      });
      return {
        type: "bar",
        data: {
          labels: drawing.labels,
          datasets: [
            bar("simulated", drawing.simulated, "series-0"),
            bar("measured", drawing.measured, "series-1"),
            bar("lowest to highest measured",
                drawing.lowest.map((value, i) => [value, drawing.highest[i]]), "series-5"),
          ],
        },
        options: made,
        plugins: [barTexts((chart) => [drawing.simulated, drawing.measured].flatMap((values, set) =>
          values.map((value, i) => {
            const bar = chart.getDatasetMeta(set).data[i];
            return { text: plain(value), start: bar.base, x: bar.x, y: bar.y };
          })))],
      };
    },

    lines(drawing) {
      const unit = drawing.x.format === "bytes" ? bytes : plain;
      const made = options({ x: scale(drawing.x),
                             y: scale(drawing.y, drawing.stacked ? { stacked: true } : {}) },
                           { title: (items) => unit(items[0].parsed.x),
                             label: (item) => item.dataset.label + ": " + plain(item.raw.y) });
      if (drawing.x.scale === "log") {
        const x = drawing.series.flatMap((series) => series.points.map((point) => point[0]));
        made.scales.x.min = Math.min(...x) / 1.1;
        made.scales.x.max = Math.max(...x) * 1.1;
      }
      made.interaction = { mode: "nearest", axis: "x", intersect: false };
      made.plugins.tooltip.mode = drawing.smooth || drawing.stacked ? "index" : "nearest";
      const sets = drawing.series.map((series, i) => {
        const color = colorOf(series, i);
        const many = series.points.length > 40;
        return {
          label: series.name,
          data: series.points.map(([x, y]) => ({ x, y })),
          borderColor: color,
          backgroundColor: drawing.stacked ? color + "cc" : color,
          fill: drawing.stacked ? (i === 0 ? "origin" : "-1") : false,
          borderWidth: 2,
          borderDash: i >= colors ? [6, 4] : [],
          pointStyle: drawing.stacked ? "rect" : marks[i % marks.length],
          radius: many ? 0 : 4,
          hitRadius: 8,
          tension: 0,
        };
      });
      const x = drawing.series.flatMap((series) => series.points.map((point) => point[0]));
      for (const mark of drawing.marks || []) {
        sets.push({
          label: mark.name,
          data: [Math.min(...x), Math.max(...x)].map((at) => ({ x: at, y: mark.at })),
          borderColor: css("soft"),
          borderDash: [4, 4],
          borderWidth: 1.5,
          radius: 0,
        });
      }
      return { type: "line", data: { datasets: sets }, options: made };
    },

    points(drawing) {
      const styles = [
        { color: css("series-0"), mark: "circle" },
        { color: css("series-3"), mark: "triangle" },
        { color: css("series-1"), mark: "crossRot" },
        { color: css("series-7"), mark: "rect" },
      ];
      const count = drawing.groups.reduce((sum, group) => sum + group.points.length, 0);
      const made = options({ x: scale(drawing.x, { grace: "12%" }), y: scale(drawing.y) },
                           { label: (item) => [item.raw.label, plain(item.raw.x) + " $ per hour, " +
                                               plain(item.raw.y) + " s"] });
      const y = drawing.groups.flatMap((group) => group.points.map((point) => point[1]));
      made.scales.y.min = Math.min(...y) / 1.6;
      made.scales.y.max = Math.max(...y) * 1.6;
      const sets = drawing.groups.map((group, i) => ({
        label: group.name,
        data: group.points.map(([x, at, label]) => ({ x, y: at, label })),
        borderColor: styles[i].color,
        backgroundColor: styles[i].color,
        pointStyle: styles[i].mark,
        borderWidth: 2,
        radius: 6,
        hoverRadius: 8,
        showLine: i === 0,
        borderDash: [5, 4],
      })).filter((set) => set.data.length > 0);
      return {
        type: "scatter",
        data: { datasets: sets },
        options: made,
        plugins: count <= 14 && !narrow() ? [pointLabels] : [],
      };
    },
  };

  // Writes each point's name beside it, where there is room and no other name.
  const pointLabels = {
    id: "pointLabels",
    afterDatasetsDraw(chart) {
      const draw = chart.ctx;
      const area = chart.chartArea;
      const taken = [];
      draw.save();
      draw.font = labelFont();
      draw.fillStyle = css("ink");
      draw.textBaseline = "middle";
      chart.data.datasets.forEach((set, index) => {
        chart.getDatasetMeta(index).data.forEach((point, i) => {
          const text = set.data[i].label;
          const width = draw.measureText(text).width;
          const left = point.x + 10 + width > area.right ? point.x - 10 - width : point.x + 10;
          const free = [0, -15, 15, -30, 30].map((shift) => point.y + shift).find((y) =>
            y > area.top + 6 && y < area.bottom - 6 &&
            !taken.some((box) => Math.abs(box.y - y) < 14 && left < box.right && left + width > box.left));
          if (free !== undefined) {
            taken.push({ y: free, left, right: left + width });
            draw.fillText(text, left, free);
          }
        });
      });
      draw.restore();
    },
  };

  function draw() {
    while (charts.length > 0) {
      charts.pop().destroy();
    }
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = narrow() ? 11 : 12;
    drawings.forEach((drawing, i) => {
      const canvas = document.getElementById("chart-" + i);
      charts.push(new Chart(canvas, makers[drawing.kind](drawing)));
    });
  }

  let wasNarrow = narrow();
  window.addEventListener("resize", () => {
    if (narrow() !== wasNarrow) {
      wasNarrow = narrow();
      draw();
    }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
