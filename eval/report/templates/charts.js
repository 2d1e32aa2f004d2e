// Draws each figure when it comes into view, and anew when the scheme of colours changes.
(() => {
  const themes = JSON.parse(document.getElementById("chart-themes").textContent);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const draw = async (figure) => {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const place = figure.querySelector(".drawing");
    const result = await vegaEmbed(place, spec, {
      config: themes[scheme.matches ? "dark" : "light"],
      renderer: "svg",
      actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
      downloadFileName: figure.id,
    });
    figure.dataset.drawn = "yes";
    return result;
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
  scheme.addEventListener("change", () =>
    figures.filter((figure) => figure.dataset.drawn).forEach(draw));
  addEventListener("beforeprint", () => figures.filter((f) => !f.dataset.drawn).forEach(draw));
})();
