// Escape leaves the form that was opened in place: what its "Leave it" does.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  const box = event.target.closest("[data-open]");
  const leave = box && box.querySelector("[data-leave]");
  if (leave) { event.preventDefault(); leave.click(); }
});
