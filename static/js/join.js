// The first owner's zone is guessed from the browser, while nothing was chosen yet.
const zone = document.querySelector("[data-zone-guess]");
const guess = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !zone.querySelector("[selected]") && [...zone.options].some((option) => option.value === guess)) zone.value = guess;
