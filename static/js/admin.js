"use strict";
/* select2 draws a box of its own in place of a select, and names it by its value alone: here it is called what its label says,
   and so is the field that one types into. Loaded by every page of the admin. */
(() => {
  const boxes = "select.select2-hidden-accessible";
  const boxOf = (select) => select.parentElement.querySelector(".select2-selection");

  const name = (select) => {
    const label = select.labels && select.labels[0];
    const box = boxOf(select);
    if (!box || box.dataset.named) return;
    const said = label ? label.textContent.replace(/[\s*:]+$/, "").trim() : select.getAttribute("aria-label");
    if (!said) return;
    box.dataset.named = said;
    box.setAttribute("aria-label", said);
    // The value is read after the name: both are said.
    const value = box.querySelector(".select2-selection__rendered");
    if (!box.id) box.id = `${select.id || select.name}-box`;
    if (value && value.id) box.setAttribute("aria-labelledby", `${box.id} ${value.id}`);
  };
  const nameAll = () => document.querySelectorAll(boxes).forEach(name);

  window.addEventListener("load", () => {
    nameAll();
    if (!window.django || !window.django.jQuery) return;
    window.django.jQuery(document).on("select2:open", (event) => {
      const field = document.querySelector(".select2-container--open .select2-search__field");
      const box = boxOf(event.target);
      if (field && box && box.dataset.named) field.setAttribute("aria-label", box.dataset.named);
    });
  });
})();
