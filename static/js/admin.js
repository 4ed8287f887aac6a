"use strict";
/* select2 draws a box of its own in place of a select, and names it by its value alone: here it is called what the select's label
   says, and so is the field that one types into. Every page of the admin loads this; boxes come after it, and by what htmx brings. */
(() => {
  const nameBox = (select) => {
    const box = select.parentElement.querySelector(".select2-selection");
    const label = select.labels[0];
    if (!box || box.dataset.named || !label) return;
    // Without the mark of a field that must be filled in.
    const said = label.firstChild.textContent.trim();
    box.dataset.named = said;
    box.setAttribute("aria-label", said);
    const value = box.querySelector(".select2-selection__rendered");
    if (!value) return;
    // Plain text, read behind the name. As a text box it would have to have a name itself.
    value.removeAttribute("role");
    value.removeAttribute("aria-readonly");
    box.id ||= `${value.id}-box`;
    box.setAttribute("aria-labelledby", `${box.id} ${value.id}`);
  };
  // Likewise what simplebar scrolls: all of it would be "scrollable content", and one not told from the other.
  const nameScroller = (area) => {
    const said = document.getElementById("page").dataset;
    const which = area.id === "nav-sidebar-apps" ? "pages" : area.closest("#changelist-form") ? "rows" : "scrolls";
    area.dataset.simplebarAriaLabel = said[which];
  };
  const nameAll = () => {
    document.querySelectorAll("#page [data-simplebar]:not([data-simplebar-aria-label])").forEach(nameScroller);
    document.querySelectorAll("select.select2-hidden-accessible").forEach(nameBox);
    const box = document.querySelector('.select2-selection[aria-expanded="true"]');
    const field = document.querySelector(".select2-container--open .select2-search__field");
    if (box && field && box.dataset.named) field.setAttribute("aria-label", box.dataset.named);
  };
  new MutationObserver(nameAll).observe(document.documentElement, { childList: true, subtree: true });
})();
