// Draws each figure when it comes into view.
(() => {
  const config = JSON.parse(document.getElementById("chart-theme").textContent);
  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  };
  const draw = async (figure) => {
    const spec = await unpacked(figure.querySelector("script").textContent);
    const place = figure.querySelector(".drawing");
    const result = await vegaEmbed(place, spec, {
      config,
      renderer: "svg",
      actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
      downloadFileName: figure.id,
    });
    narrow(figure, result.view, spec.usermeta);
    figure.dataset.drawn = "yes";
    return result;
  };
  // Menus offer, and sliders reach, only what there is for the choices in the menus before them.
  const narrow = (figure, view, { menus = [], there = [] } = {}) => {
    const now = (field) => view.signal(`chosen_${field}`);
    const control = (field) => figure.querySelector(`[name="chosen_${field}"]`);
    const update = () => {
      let fitting = there;
      menus.forEach((field, i) => {
        const values = fitting.map((place) => place[i]);
        if (!values.includes(now(field))) view.signal(`chosen_${field}`, values.at(-1));
        for (const option of control(field).options) {
          option.hidden = option.disabled = !values.some((v) => String(v) === option.text);
        }
        fitting = fitting.filter((place) => place[i] === now(field));
      });
      const slider = control("position");
      if (slider) {
        slider.max = Math.max(...fitting.map((place) => place.at(-1)));
        if (now("position") > slider.max) view.signal("chosen_position", Number(slider.max));
      }
      view.runAsync();
    };
    menus.forEach((field) => view.addSignalListener(`chosen_${field}`, update));
    if (menus.length) update();
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  const figures = [...document.querySelectorAll("figure.chart")];
  figures.forEach((figure) => seen.observe(figure));
  addEventListener("beforeprint", () => figures.filter((f) => !f.dataset.drawn).forEach(draw));
})();
